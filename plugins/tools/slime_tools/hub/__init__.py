"""Data sets of the Hugging Face hub by address, and models that go there."""
