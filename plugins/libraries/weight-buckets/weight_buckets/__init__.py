"""Weights on their way from trainers to engines: what both ends agree on.

bucket     many tensors in one block of memory, and how another process gets at it
receipt    what a bucket says of itself, and digests of what it holds
views      where tensors lie in a block, and copying them all at once
kernels    digests on a GPU
"""
