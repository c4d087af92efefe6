"""Commands of slime around a run: estimates of memory and time, layouts, checks, conversions, evaluation, pages."""
