"""Learning from pairs of a chosen and a rejected answer: the objectives `dpo` and `reward_model`."""
