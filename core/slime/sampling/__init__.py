"""The sampling loop: prompts in, rewarded and filtered groups out; training and evaluation are its clients."""
