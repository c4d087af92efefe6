"""Weights between Hugging Face, Megatron-core and SGLang: a room for each process that touches them.

megatron    trainers and tools: between Hugging Face checkpoints and Megatron's modules
publisher   trainers: hands versions to the engines
engine      SGLang's processes: takes versions in, and proves what came
shared      both ends of a publish: buckets, digests, kernels
"""
