"""The console of a run: lines while it starts, a bar or lines while it works, `summary.txt` at its end."""
