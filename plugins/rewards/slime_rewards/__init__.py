"""Rewards of slime: math answers, programs, functions in a file, judges, reward models and first tasks."""
