"""A step of a run, trained or generated again."""
