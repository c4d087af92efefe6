"""What slime shows and records of a run: console, samples, learning, and trackers."""
