"""What GPUs and hosts of a run will hold, phase by phase: the estimate of memory for `cluster.device=cuda`."""
