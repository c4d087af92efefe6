"""Weights between Hugging Face, Megatron-core and SGLang, in the processes of trainers and tools.

portions    a version as a trainer gives it
quantized   what engines hold of it in fewer bits
hf_files    the safetensors of a Hugging Face folder
elsewhere   which of its files are the checkpoint
other_forms what its weights are where they are no safetensors
causes      why its tensors are not the model's
publisher   trainers: hands versions to the engines

The other end of a publish is slime-sglang: it takes versions in, inside SGLang, and proves what came. What both
agree on, buckets and digests, is the distribution weight-buckets.
"""
