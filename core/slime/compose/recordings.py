"""Whether engines can note what layers are to replay."""

from __future__ import annotations

from collections.abc import Iterator

from slime.errors import SlimeError
from slime.topology.recordings import recordings_of
from slime.topology.topology import Topology

KEY = "train.routing_replay"


def recording_problems(topology: Topology) -> Iterator[SlimeError]:
    """Why what `train.routing_replay` asks for cannot be."""
    cfg = topology.config
    if not cfg.train.routing_replay:
        return
    recordings, todo = recordings_of(cfg), f"Set {KEY}=false, or change that."
    if not recordings:
        yield SlimeError("does nothing: the model has no mixture of experts", where=KEY, todo="Remove it.")
    elif topology.works_in_pairs:
        what = "prefill and decode engines do not return what prefill engines chose"
        yield SlimeError(what, where=KEY, todo=todo)
    for group in topology.groups:
        for recording in recordings:
            for problem in recording.problems(cfg.train.megatron, group.sglang):
                yield SlimeError(problem, where=KEY, todo=todo)
