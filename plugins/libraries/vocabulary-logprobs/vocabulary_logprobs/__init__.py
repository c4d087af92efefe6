"""Log-probs and entropies of next tokens from hidden states: `.logprob`, with Triton kernels in `.kernels`."""
