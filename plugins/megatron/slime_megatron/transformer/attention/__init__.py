"""Attention over packed sequences: the part of a layer that all kinds of attention share."""
