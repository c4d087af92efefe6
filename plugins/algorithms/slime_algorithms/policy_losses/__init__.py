"""Policy optimisation beside GRPO: the objectives `gspo`, `cispo`, `sapo` and `dppo`, and the estimators `rloo`,
`reinforce_pp` and `reinforce_pp_baseline`."""
