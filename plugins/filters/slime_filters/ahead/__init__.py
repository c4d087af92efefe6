"""Rollouts that go on while trainers work (`rollout.max_staleness` above 0)."""
