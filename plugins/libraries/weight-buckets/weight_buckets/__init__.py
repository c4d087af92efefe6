"""Weights on their way from trainers to engines, as both ends know them: `bucket`, `receipt`, `views`, `kernels`."""
