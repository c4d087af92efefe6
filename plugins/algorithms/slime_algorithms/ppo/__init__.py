"""Proximal policy optimisation with a critic: the estimator `gae`."""
