"""Sizes of a run's model: its parameters, the bytes of a published version, and the seam of estimates of memory."""
