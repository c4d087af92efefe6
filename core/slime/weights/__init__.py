"""Weights between Hugging Face, Megatron-core and SGLang."""
