"""Triton kernels for the chains of small operations between the matrix products, on CUDA.

Each module is the CUDA half of a function whose plain torch form stands beside its caller; modules choose one of the
two when they are built. All arithmetic is fp32, whatever the tensors' own precision. Importing one needs Triton.
"""
