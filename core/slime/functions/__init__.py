"""Filters, buffers, estimators, objectives and trackers that are functions or classes of a user's file."""
