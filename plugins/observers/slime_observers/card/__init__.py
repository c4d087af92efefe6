"""The model card of a run's export."""
