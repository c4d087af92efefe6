"""Programs of several turns, and programs in worker processes: what attempts of one response do without."""
