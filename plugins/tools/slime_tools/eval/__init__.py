"""Scores a run's checkpoint, or an HF folder, on held-out prompts: the verb `eval`."""
