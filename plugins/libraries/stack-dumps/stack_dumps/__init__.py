"""Where the threads of hung processes stand: `stack_dumps.dumps` asks them, `stack_dumps.blame` says who to look at."""
