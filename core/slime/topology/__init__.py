"""Which processes a run has, where each stands and what it is told: pure values, computed from the config alone."""
