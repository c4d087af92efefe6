"""`samples/` and `replay/` of a run directory: the model's responses, a file a step, and functions that read them."""
