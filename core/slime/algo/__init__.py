"""Learning: the objectives with their formulas, advantages, and the stages of a run."""
