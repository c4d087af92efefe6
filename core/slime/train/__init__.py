"""Megatron-core as the trainer: the same code over gloo on CPU and over NCCL on GPUs."""
