"""Generation: SGLang engines, their client, and the sampling loop."""
