"""Megatron-core as the trainer of slime: its blocks, log-probs, weights, LoRA and FP8 forms."""
