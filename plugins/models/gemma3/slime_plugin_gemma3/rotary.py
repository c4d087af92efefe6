"""The bases of Gemma 3's rotary embeddings."""

LOCAL_BASE = 10_000.0
"""Of the layers with a sliding window, in every Gemma 3."""
GLOBAL_BASE = 1_000_000.0
"""Of the others, where config.json names none."""
