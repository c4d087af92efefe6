"""What a version of the weights moves in a run, and how long that takes, for `slime plan`."""
