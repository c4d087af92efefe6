"""How long trainers of a run wait for each other in a step, for `slime plan`."""
