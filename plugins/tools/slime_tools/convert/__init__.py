"""Checkpoints from one format into another, tensor by tensor, at any size: the verb `convert`."""
