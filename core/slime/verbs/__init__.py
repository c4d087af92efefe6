"""What `slime <verb> ...` does: a module a verb, and which verbs there are."""
