"""People watch runs: the live page (`slime watch`), the same page frozen (`slime report`, and at the end of a run), the
list of runs (`slime runs`), samples in the terminal (`slime samples`), and what a page needs that no other file has."""
