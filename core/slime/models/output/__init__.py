"""Log-probs and entropies of next tokens, from hidden states."""
