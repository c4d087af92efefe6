"""Read by mypy only: what is called on actors is checked by name and argument. An ignore without need is an error."""

from __future__ import annotations

from pathlib import Path

from slime.cluster.actors import TrainerActor
from slime.cluster.calls import Calls
from slime.cluster.trainers import TrainerGroup
from slime.cluster.watch import Member
from slime.train.rank import TrainerRank


def calls(member: Member, calls: Calls) -> list[None]:
    member.call(TrainerActor.begin_save, Path("checkpoint"))
    member.call(TrainerActor.begin_save, 1)  # type: ignore[arg-type]
    member.call(TrainerActor.begin_safe, Path("checkpoint"))  # type: ignore[attr-defined]
    calls.all([member], "saving", 1.0, TrainerActor.begin_save)  # type: ignore[call-arg]
    return calls.all([member], "saving", 1.0, TrainerActor.begin_save, Path("checkpoint"))


def of_trainers(trainers: TrainerGroup) -> list[dict[str, float]]:
    trainers.all(TrainerRank.load, Path("checkpoint"))
    trainers.all(TrainerRank.load, 1)  # type: ignore[arg-type]
    trainers.all(TrainerRank.lode, Path("checkpoint"))  # type: ignore[attr-defined]
    trainers.all(TrainerRank.load)  # type: ignore[call-arg]
    return trainers.all(TrainerRank.offload)
