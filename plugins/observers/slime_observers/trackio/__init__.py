"""Trackio: the tracker `trackio`."""
