"""The seam to rollouts that go on while trainers work (`rollout.max_staleness` above 0): a plugin brings them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from slime.config.choices import Publish
from slime.engine_client.client import Completion
from slime.engine_client.engine_set import EngineSet
from slime.sampling.collected import Collected, Progress


class Passed(NamedTuple):
    """A request's answer.

    Attributes:
        version: that the engines held when it was sent.
        is_interrupted: the gate closed meanwhile, and may have aborted it.
    """

    completion: Completion
    version: int
    is_interrupted: bool


class Gate(Protocol):
    """Lets requests through to the engines, or has them wait.

    Attributes:
        version: of the weights that every engine holds; behind a gate that is closed, of those that they held.
    """

    version: int

    @property
    def keeps_keys(self) -> bool:
        """Whether tokens are sampled on keys and values of older weights than their own."""

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], **fields: Any) -> Passed:
        """As `EngineSet.generate`, once the gate is open."""

    async def close(self) -> None:
        """Let nothing through from now on. Afterwards the engines generate nothing, and take new weights.

        Raises:
            SlimeError: an engine is gone, or does not answer.
        """

    async def open(self, version: int) -> None:
        """Go on: every engine holds `version`."""


class AheadRollout(Protocol):
    """Generates for the steps to come, as long as its event loop turns.

    Attributes:
        num_overlapped: tokens of responses that ended while trainers worked, since the last step was collected.
    """

    num_overlapped: int

    @property
    def num_tokens(self) -> int:
        """Of responses that ended since the last step was collected."""

    def go_on(self, version: int) -> None:
        """Every engine holds `version` now; begin what may be begun."""

    async def collect(self, version: int, progress: Progress) -> Collected:
        """The groups of the step that trains weight `version`; waits for them. As `slime.sampling.loop.Rollout`."""

    async def close(self) -> None:
        """Leave everything where it stands."""


@dataclass(frozen=True)
class Ahead:
    """What a plugin brings.

    Attributes:
        gate: of the engines, of what becomes of requests inside when it closes, and of the seconds within which an
            aborted one is answered.
        rollout: arguments as of `slime.sampling.loop.Rollout`, and `num_steps` of the whole run.
    """

    gate: Callable[[EngineSet, Publish, float], Gate]
    rollout: Callable[..., AheadRollout]
