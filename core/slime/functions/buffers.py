"""Buffer policy `function`: a function that chooses which of the waiting groups go on, or a class with the methods of
`slime.contracts.BufferPolicy`."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, ClassVar

from slime.by_path.called import Form, Own, PathOptions
from slime.contracts import BufferPolicy
from slime.functions.theirs import Args, SampleView
from slime.sampling.buffer import FifoBuffer
from slime.types import Group

NAMES = ("groups", "count", "version", "args", "rollout_id", "buffer", "num_samples")


@dataclass
class BufferOptions(PathOptions):
    form: ClassVar[Form] = Form(NAMES, ("groups", "count"), ("put", "take", "__len__", "state_dict", "load_state_dict"))


def own_buffer(**options: Any) -> BufferPolicy:
    own = Own(BufferOptions(**options), "buffer.path")
    made: BufferPolicy = FunctionBuffer(own) if own.made is None else own.made  # an empty one is false
    return made


class FunctionBuffer(FifoBuffer):
    """Keeps every group until the function returns it, or deletes it from the list that it gets.

    Attributes:
        dropped: groups that it deleted and did not return, since the loop has read it.
    """

    def __init__(self, own: Own) -> None:
        super().__init__()
        self._own = own
        self.dropped = Counter[str]()

    def take(self, count: int, version: int) -> list[Group]:
        """The groups that the function returns, at most `count`."""
        held = list(self._groups)
        if count < 1 or not held:
            return []
        given: list[Any] = [*held]
        if "args" in self._own.takes:
            given = [[SampleView(sample) for sample in group.samples] for group in held]
        place, shown = {id(each): number for number, each in enumerate(given)}, [*given]
        answer = self._own.call(
            {
                **dict.fromkeys(("groups", "buffer"), shown),
                **dict.fromkeys(("count", "num_samples"), count),
                **dict.fromkeys(("version", "rollout_id"), version),
                "args": Args(self._own.arguments),
            }
        )
        taken = [place.get(id(each), -1) for each in answer] if isinstance(answer, list | tuple) else [-1]
        if len({*taken}) != len(taken) or len(taken) > count or -1 in taken:
            raise self._own.returned(answer, f"a list of at most {count} of the groups that it got, each once")
        left = [place[id(each)] for each in shown if place.get(id(each), -1) not in (*taken, -1)]
        if deleted := len(held) - len(taken) - len(left):
            self.dropped["deleted"] += deleted
        self._groups = deque(held[number] for number in left)
        return [held[number] for number in taken]
