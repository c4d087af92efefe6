"""A program that lets the model begin again where it ran out of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slime.contracts import Program, Responder
from slime.hookspecs import hookimpl
from slime.types import Task, Verdict


@dataclass
class Retry:
    times: int = 1
    """How often the model may begin again after a response that reached its limit."""
    give_up: bool = False
    """Whether a last response that reached the limit gets 0, without being judged."""

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        turn = await model.respond()
        for _ in range(0 if task.is_evaluation else self.times):
            if turn.finish == "stop":
                break
            turn = await model.respond()
        return Verdict.of(0.0) if self.give_up and turn.finish == "length" else None


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"retry": Retry}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"program/retry": Retry}
