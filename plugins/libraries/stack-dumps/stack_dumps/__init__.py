"""Stacks of hung processes: `stack_dumps.dumps` asks for them, `stack_dumps.blame` says who to look at."""
