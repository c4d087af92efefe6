"""A watch over learning: it warns of what comes before a collapse, and stops a run whose rewards say nothing."""
