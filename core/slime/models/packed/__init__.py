"""Packed sequences: how micro-batches lie on context-parallel ranks, and attention over them."""
