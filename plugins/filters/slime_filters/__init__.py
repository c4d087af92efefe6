"""Which rollouts of slime are trained on, and when: dynamic sampling, buffers, rollouts ahead of the trainers."""
