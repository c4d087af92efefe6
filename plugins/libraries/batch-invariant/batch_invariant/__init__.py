"""Operators of a dense transformer that give each row the same bits whatever stands beside it, in two programs alike.

Products in `.products`, what works on rows in `.rows`, attention in `.attention`; all have a form for CPUs and one for
GPUs (`.kernels`). `.passes` puts them into the forward pass of a model that learns.
"""
