"""Makes rows with reasoning-gym: `python -m slime_agents.gym.generate ADDRESS_AS_JSON` writes them as jsonl."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from slime.errors import SlimeError, did_you_mean
from slime_agents.gym.rows import HELD_OUT, Address

DRAWS_A_SEED = 1_000_000
"""Row i of seed s is the generator's row i of the seed s * DRAWS_A_SEED, because generators add the two."""
_MOST_DRAWS_A_ROW, _SOME_DRAWS = 50, 1000


def dataset(generator: str, options: Mapping[str, Any]) -> Any:
    """A data set of reasoning-gym.

    Raises:
        SlimeError: there is no such generator, or it does not take these options.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if generator not in DATASETS:
        todo = did_you_mean(generator, sorted(DATASETS))
        raise SlimeError(f"reasoning-gym has no generator '{generator}'", todo=todo)
    known = {each.name for each in dataclasses.fields(DATASETS[generator][1])}
    for name in options:
        if name not in known:
            raise SlimeError(f"{generator} has no option '{name}'", todo=did_you_mean(name, sorted(known)))
    try:
        return reasoning_gym.create_dataset(generator, **options)
    except (AssertionError, ValueError, TypeError, AttributeError) as error:
        raise SlimeError(f"{generator}: {error}", todo="Change its options.") from error


def rows(wanted: Address) -> Iterator[dict[str, Any]]:
    """The rows of an address. A question comes once, and stands in one part alone.

    Raises:
        SlimeError: as `dataset`; or there are too few questions, or what judges them is no JSON.
    """
    most = min(DRAWS_A_SEED, _SOME_DRAWS + _MOST_DRAWS_A_ROW * wanted.size)
    own = {**wanted.options, "seed": wanted.seed * DRAWS_A_SEED, "size": most}
    source, seen = dataset(wanted.generator, own), set[bytes]()
    for index in range(most):
        if len(seen) == wanted.size:
            return
        entry = source[index]
        digest = hashlib.sha256(entry["question"].encode()).digest()
        if digest in seen or (digest[0] % 8 == 0) != (wanted.part == HELD_OUT):
            continue
        seen.add(digest)
        yield _row(wanted, source, entry)
    if len(seen) < wanted.size:
        what = f"{wanted.generator} has {len(seen)} questions for this part in {most} draws, not {wanted.size}"
        raise SlimeError(what, todo=f"Ask for fewer (size:{len(seen)}), or let its options have more.")


def _row(wanted: Address, source: Any, entry: Mapping[str, Any]) -> dict[str, Any]:
    question, answer = entry["question"], str(entry["answer"])
    if wanted.demonstrations:
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    row = {"prompt": question, "label": answer, "generator": wanted.generator, "metadata": entry["metadata"]}
    try:
        read = json.loads(json.dumps(row))
        same = source.score_answer(answer, read | {"answer": answer}) == source.score_answer(answer, entry)
    except Exception:  # noqa: BLE001 because a generator's judge may raise anything on what it does not know
        same = False
    if not same:
        what = f"{wanted.generator} judges by what cannot be written as JSON"
        raise SlimeError(what, todo="Take another generator.")
    return row


def main(text: str) -> int:
    """Write the rows of an address to standard output; or the fault, a tab, and what to do, to standard error."""
    try:
        for row in rows(Address(**json.loads(text))):
            sys.stdout.write(json.dumps(row) + "\n")
    except SlimeError as error:
        sys.stderr.write(f"{error.what}\t{error.todo}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
