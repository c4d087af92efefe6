"""Several prompt sets in one stream, each with its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from slime.config.schema import DataConfig, TrainSetConfig
from slime.data.prompts import PromptSource, data_of
from slime.data.tokenize import Tokenizer
from slime.types import Prompt


class PromptMix:
    """Prompts to train on, without end, of `data.path` and of `data.sets`: as nearly as whole prompts allow, each set
    has its share of those taken since the run began. Which comes next depends on how many were taken of each alone."""

    def __init__(self, data: DataConfig, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int) -> None:
        def source(name: str, own: TrainSetConfig) -> PromptSource:
            return PromptSource(data_of(data, own), tokenizer, seed, max_prompt_tokens, name)

        self._main = PromptSource(data, tokenizer, seed, max_prompt_tokens)
        self._named = {name: source(name, own) for name, own in data.sets.items()}
        self._shares = [(self._main, data.share), *((self._named[name], own.share) for name, own in data.sets.items())]

    def __len__(self) -> int:
        return sum(len(source) for source, _ in self._shares)

    def encoded(self) -> Iterator[tuple[str, Sequence[int]]]:
        """The place that each prompt comes from, and its ids."""
        return chain.from_iterable(source.prompts.found.encoded() for source, _ in self._shares)

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a row without these numbers, which the objective reads."""
        for source, _ in self._shares:
            source.prompts.check_columns(names)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts, each of the set that is due first: its n-th prompt is due when n / share prompts of
        share 1 are."""
        found: list[Prompt] = []
        while len(found) < count:
            found += min(self._shares, key=lambda each: (each[0].order.num_taken + 1) / each[1])[0].take(1)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Position and content hash of every set, as plain values; of an only one, those of `PromptSource`."""
        named = {name: source.state_dict() for name, source in self._named.items()}
        return self._main.state_dict() | ({"sets": named} if named else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; raises as `EpochOrder.load_state_dict`."""
        self._main.load_state_dict(state)
        for name, source in self._named.items():
            source.load_state_dict(state["sets"][name])
