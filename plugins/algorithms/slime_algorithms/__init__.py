"""Objectives and advantage estimators of slime: policy losses, PPO with a critic, preferences, distillation."""
