"""Kills on purpose in a short run, which must come back as it was promised."""
