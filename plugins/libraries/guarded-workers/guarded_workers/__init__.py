"""Worker processes: somebody else's code runs in them, and may raise, hang, crash or eat memory without harm."""
