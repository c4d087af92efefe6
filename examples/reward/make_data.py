"""Writes till.jsonl and till-heldout.jsonl: sums that need no carry, such as 24+15=, with their totals."""

import json
import random

draw = random.Random(0)
digits = [(a, b) for a in range(10) for b in range(10) if a + b < 10]  # no carry
tens = [(a, b) for a, b in digits if a and b]
rows = [
    {"prompt": f"{10 * a + c}+{10 * b + d}=", "label": str(10 * (a + b) + c + d)} for a, b in tens for c, d in digits
]
draw.shuffle(rows)
for name, part in (("till-heldout.jsonl", rows[:64]), ("till.jsonl", rows[64:])):
    with open(name, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in part)
print(f"{len(rows) - 64} rows in till.jsonl, 64 in till-heldout.jsonl")
