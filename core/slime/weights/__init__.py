"""Weights between Hugging Face, Megatron-core and SGLang, in the processes of trainers and tools. The other end of a
publish is slime-sglang, which takes versions in, inside SGLang, and proves what came; what both agree on, buckets and
digests, is the distribution weight-buckets."""
