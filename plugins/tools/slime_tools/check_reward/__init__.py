"""Tries a reward on a prompt set: the verb `check-reward`."""
