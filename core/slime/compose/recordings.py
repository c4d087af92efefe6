"""Whether engines can note what layers are to replay."""

from __future__ import annotations

from collections.abc import Iterator

from slime.errors import SlimeError
from slime.topology.recordings import recordings_of
from slime.topology.topology import Topology

REPLAY, WATCH = "train.routing_replay", "observe.routing"


def recording_problems(topology: Topology) -> Iterator[SlimeError]:
    """Why what one of the two asks for cannot be."""
    cfg = topology.config
    if not (cfg.train.routing_replay or cfg.observe.routing):
        return
    key = REPLAY if cfg.train.routing_replay else WATCH
    recordings, todo = recordings_of(cfg), f"Set {key}=false, or change that."
    if not recordings:
        yield SlimeError("does nothing: the model has no mixture of experts", where=key, todo="Remove it.")
    elif topology.works_in_pairs:
        what = "prefill and decode engines do not return what prefill engines chose"
        yield SlimeError(what, where=key, todo=todo)
    for group in topology.groups:
        for recording in recordings:
            for problem in recording.problems(cfg.train.megatron, group.sglang):
                yield SlimeError(problem, where=key, todo=todo)
