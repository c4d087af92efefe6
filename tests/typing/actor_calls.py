"""Read by mypy only: what is called on actors is checked by name and argument. An ignore without need is an error."""

from __future__ import annotations

from pathlib import Path

from slime.cluster.actors import TrainerActor
from slime.cluster.calls import Calls
from slime.cluster.watch import Member


def calls(member: Member, calls: Calls) -> list[None]:
    member.call(TrainerActor.load, Path("checkpoint"))
    member.call(TrainerActor.load, 1)  # type: ignore[arg-type]
    member.call(TrainerActor.lode, Path("checkpoint"))  # type: ignore[attr-defined]
    calls.all([member], "loading", 1.0, TrainerActor.load)  # type: ignore[call-arg]
    return calls.all([member], "loading", 1.0, TrainerActor.load, Path("checkpoint"))
