"""What every device and host of a run holds, phase by phase: computed from the config, without torch."""
