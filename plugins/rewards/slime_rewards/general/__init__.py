"""Rewards of general use: a function of yours, a route by a column, a judge, a reward model, a server, and likeness."""
