"""Environments of verifiers for slime: a program that plays them in their interpreter, and their tasks as prompts."""
