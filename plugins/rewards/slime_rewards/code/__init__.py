"""The reward `code` for slime, Python in the answer run against tests, and the tool `python`: both in a sandbox."""
