"""Packed sequences: how micro-batches lie on context-parallel ranks, and what layers read of them."""
