"""Writes three.jsonl: sums of three numbers that need no carry, such as 21+32+44=, with their totals."""

import json
import random

draw = random.Random(0)
rows = []
while len(rows) < 1000:
    tens, ones = ([draw.randint(low, 3) for _ in range(3)] for low in (1, 0))
    numbers = [10 * ten + one for ten, one in zip(tens, ones, strict=True)]
    rows.append({"prompt": f"{'+'.join(map(str, numbers))}=", "label": str(sum(numbers))})
with open("three.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
print(f"{len(rows)} rows in three.jsonl")
