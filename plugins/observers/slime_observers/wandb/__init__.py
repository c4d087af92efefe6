"""Weights & Biases: the tracker `wandb`."""
