"""Weights between Hugging Face, Megatron-core and SGLang, in the processes of trainers and tools.

megatron    trainers and tools: between Hugging Face checkpoints and Megatron's modules
publisher   trainers: hands versions to the engines

The other end of a publish is slime-plugin-sglang: it takes versions in, inside SGLang, and proves what came. What both
agree on, buckets and digests, is the distribution weight-buckets.
"""
