"""What is learnt: the objectives with their formulas, advantages, and the stages that a run goes through."""
