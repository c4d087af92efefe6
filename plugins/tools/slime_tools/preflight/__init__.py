"""Looks at every host of a run before anything loads: the preflight `hosts` and the verb `preflight`."""
