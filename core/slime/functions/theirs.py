"""What functions that were written for THUDM/slime get: `args`, and samples with the names of that project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime.types import Message, Sample


class Args:
    """The `arguments` of the options as attributes, for a function that takes `args`."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        vars(self).update(arguments)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"args has no '{name}': set it among the function's arguments")


class SampleView:
    """A sample to be read: what `slime.types.Sample` has, and the rest by THUDM/slime's names."""

    __slots__ = ("_sample",)

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sample, name)

    @property
    def prompt(self) -> Sequence[Message]:
        return [*self._sample.prompt.messages]

    @property
    def label(self) -> Any:
        return self._sample.prompt.label

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {**self._sample.prompt.metadata}

    @property
    def tokens(self) -> list[int]:
        """Prompt and response of the last segment."""
        return [token for segment in self._sample.segments[-1:] for token in (*segment.context, *segment.tokens)]

    @property
    def response_length(self) -> int:
        return sum(len(segment.tokens) for segment in self._sample.segments)

    def get_reward_value(self, args: object) -> float | None:
        return self._sample.reward
