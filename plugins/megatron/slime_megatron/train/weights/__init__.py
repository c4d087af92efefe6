"""In trainers and tools: weights between Hugging Face checkpoints and Megatron's modules."""
