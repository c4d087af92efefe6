"""The trackers that a run has chosen (`observe.trackers`), as one subscriber of its events."""
