"""The laptop demo's task: add two numbers of two digits each ("27+58=" -> "85").

``python -m slime_rewards.math.data.arithmetic --out DIR`` writes three files; the same three lie beside this module.

``arithmetic-sft.jsonl``
    Demonstrations for the warm start, flawed on purpose. One annotator in three is careful and shows the working, tens
    first ("70+15=85"). The other two forget every carry ("75"), so that half of all demonstrations are right, and half
    of what a model samples that was trained on them. The reward tells it which habit is better.
``arithmetic-train.jsonl``
    Problems for reinforcement learning: ``{"prompt": [user], "label": "85"}``, the shape of DAPO-Math.
``arithmetic-heldout.jsonl``
    Problems for evaluation, in the same shape. None of them is in the other two files, nor is its mirror image
    (58+27 for 27+58).
"""

import random

from slime_rewards.starter.data.prompt_set import split_pairs, write

SEED = 0
NUM_HELDOUT = 256
NUM_TRAIN = 1500
NUM_SFT = 6000
CARELESS_SHARE = 2 / 3

Row = dict[str, object]


def careful_answer(x: int, y: int) -> str:
    """Sum of the tens, sum of the ones, and the result: 27 + 58 -> "70+15=85"."""
    tens = x // 10 * 10 + y // 10 * 10
    ones = x % 10 + y % 10
    return f"{tens}+{ones}={x + y}"


def user_message(x: int, y: int) -> dict[str, str]:
    return {"role": "user", "content": f"{x}+{y}="}


def sft_row(x: int, y: int, careless: bool) -> Row:
    """A demonstration: the careful answer has the working in it; the other one forgets the carries ("75", "15")."""
    answer = careful_answer(x, y)
    if careless:
        answer = str((x // 10 + y // 10) % 10 * 10 + (x + y) % 10)
    return {"messages": [user_message(x, y), {"role": "assistant", "content": answer}]}


def rl_row(x: int, y: int) -> Row:
    return {"prompt": [user_message(x, y)], "label": str(x + y)}


def rows() -> dict[str, list[Row]]:
    """The rows of the three files; the same every time."""
    rng = random.Random(SEED)
    rest, heldout = split_pairs(rng, NUM_HELDOUT)
    return {
        "sft": [sft_row(x, y, rng.random() < CARELESS_SHARE) for x, y in rest[NUM_TRAIN : NUM_TRAIN + NUM_SFT]],
        "train": [rl_row(x, y) for x, y in rest[:NUM_TRAIN]],
        "heldout": [rl_row(x, y) for x, y in heldout],
    }


if __name__ == "__main__":
    write("arithmetic", rows())
