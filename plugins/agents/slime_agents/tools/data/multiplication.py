"""The task `calculator`: multiply two numbers of two digits ("27*58=" -> "1566"), which tiny models cannot, by a tool.

`python -m slime_agents.tools.data.multiplication --out DIR` writes four files; the same lie beside this module, but for
`multiplication-python.jsonl`.

`multiplication-sft.jsonl`
    Demonstrations for the warm start. Three annotators in four guess ("guess=1742"), in the right length. The fourth
    calls the tool, in a row that ends with the call, and in one that ends with the answer behind the tool's result. A
    model trained on them guesses in three cases of four: that calls pay, only the reward tells it.
`multiplication-python.jsonl`
    The same, where the call is a program that prints the product, for a tool `python(code)`.
`multiplication-train.jsonl`, `multiplication-heldout.jsonl`
    Problems, with the product as their label. No held-out one is in the other files, nor is its mirror image.
"""

from __future__ import annotations

import json
import random
from typing import Any

from slime_rewards.starter.data.prompt_set import split_pairs, write

SEED = 0
NUM_HELDOUT, NUM_TRAIN, NUM_SFT = 256, 1500, 4000
CALLING_SHARE = 1 / 4

Row = dict[str, Any]


def user(x: int, y: int) -> dict[str, str]:
    return {"role": "user", "content": f"{x}*{y}="}


def call(x: int, y: int) -> dict[str, str]:
    """A call as tiny models write it: their chat template has no words of its own for calls."""
    return {"role": "assistant", "content": f"calculator\n{json.dumps({'expression': f'{x}*{y}'})}"}


def in_python(row: Row) -> Row:
    """A demonstration for `python(code)`: the call is a program that prints the product."""
    asked, *said = row["messages"]
    code = f"print({asked['content'].rstrip('=')})"
    if said[0]["content"].startswith("calculator"):
        said[0] = {"role": "assistant", "content": f"python\n{json.dumps({'code': code})}"}
    if len(said) > 1:
        said[1] = {**said[1], "content": f"{said[1]['content']}\n"}
    return {"messages": [asked, *said]}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def rows() -> dict[str, list[Row]]:
    rng = random.Random(SEED)
    rest, heldout = split_pairs(rng, NUM_HELDOUT)
    demonstrations: list[Row] = []
    for number, (x, y) in enumerate(rest[NUM_TRAIN : NUM_TRAIN + NUM_SFT]):
        if number < CALLING_SHARE * NUM_SFT:
            result = {"role": "observation", "content": str(x * y)}
            demonstrations.append({"messages": [user(x, y), call(x, y)]})
            demonstrations.append({"messages": [user(x, y), call(x, y), result, answer(str(x * y))]})
        else:
            size = 10 ** (len(str(x * y)) - 1)
            demonstrations.append({"messages": [user(x, y), answer(f"guess={rng.randrange(size, 10 * size)}")]})
    rng.shuffle(demonstrations)
    problems = {"train": rest[:NUM_TRAIN], "heldout": heldout}
    return {"sft": demonstrations, "python": [*map(in_python, demonstrations)]} | {
        name: [{"prompt": [user(x, y)], "label": str(x * y)} for x, y in pairs] for name, pairs in problems.items()
    }


if __name__ == "__main__":
    write("multiplication", rows())
