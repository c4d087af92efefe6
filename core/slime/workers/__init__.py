"""Worker processes: somebody's code runs in them, and may raise, hang, crash or eat memory without harm to the run."""
