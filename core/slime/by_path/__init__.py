"""Code of a user's own by its path, `FILE.py:NAME` or `MODULE:NAME` of what is installed."""
