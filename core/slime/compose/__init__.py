"""From a command line to a config that is complete and holds to every rule."""
