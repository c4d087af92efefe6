"""Math for slime: the rewards `math`, `deepscaler`, `dapo` and `arithmetic`, and a small arithmetic prompt set."""
