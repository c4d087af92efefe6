"""Completes the commands of slime in a shell: the verb `completion`."""
