"""Text to reverse, letter by letter: one to three words.

``python -m slime_rewards.starter.data.reverse_text --out FOLDER`` writes ``reverse-text-train.jsonl`` and
``reverse-text-heldout.jsonl``; the same two lie beside this module. The sets share no text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from slime_rewards.starter.data.prompt_set import Row, main

SEED = 0
NUM_TRAIN, NUM_HELDOUT = 2048, 256
WORDS = [
    "apple", "autumn", "bridge", "candle", "castle", "cloud", "copper", "desert", "dragon", "eagle", "engine",
    "falcon", "field", "forest", "garden", "glass", "harbor", "honey", "island", "jacket", "kettle", "ladder",
    "lemon", "marble", "meadow", "mirror", "needle", "ocean", "orange", "palace", "pepper", "piano", "planet",
    "pocket", "rabbit", "river", "rocket", "saddle", "school", "shadow", "silver", "sparrow", "spring", "stone",
    "summer", "table", "temple", "thunder", "tiger", "tunnel", "valley", "velvet", "violin", "wagon", "water",
    "window", "winter", "yellow",
]  # fmt: skip


def draws(rng: random.Random) -> Iterator[tuple[object, Row]]:
    """Endless draws: the text, and its row."""
    while True:
        text = " ".join(rng.sample(WORDS, rng.choice((1, 2, 2, 3, 3))))
        content = f"Reverse this text letter by letter and write only the result: {text}"
        yield text, {"prompt": [{"role": "user", "content": content}], "label": text[::-1]}


if __name__ == "__main__":
    main("reverse-text", draws, SEED, NUM_TRAIN, NUM_HELDOUT)
