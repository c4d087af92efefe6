"""Environments for slime: a class of yours with `reset` and `step`, and the generators of reasoning-gym."""
