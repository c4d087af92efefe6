"""Rollouts of several turns in slime: conversations, tools, environments, and agents that speak to an endpoint."""
