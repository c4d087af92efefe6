"""Whether engines can tell of tokens what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator

from slime.errors import SlimeError
from slime.topology.recordings import numbers_told, recordings_of
from slime.topology.topology import Topology

REPLAY, WATCH = "train.routing_replay", "observe.routing"


def recording_problems(topology: Topology) -> Iterator[SlimeError]:
    """Why what a key or a plugin asks for cannot be."""
    cfg = topology.config
    key = REPLAY if cfg.train.routing_replay else WATCH
    recordings, todo = recordings_of(cfg), f"Set {key}=false, or change that."
    asked = [(key, todo, each) for each in recordings]
    asked += [(f"recording '{each.name}'", "Uninstall its plugin, or change that.", each) for each in numbers_told()]
    if not recordings and (cfg.train.routing_replay or cfg.observe.routing):
        yield SlimeError("does nothing: the model has no mixture of experts", where=key, todo="Remove it.")
    elif recordings and topology.works_in_pairs:
        what = "prefill and decode engines do not return what prefill engines chose"
        yield SlimeError(what, where=key, todo=todo)
    for group in topology.groups:
        for where, way_out, recording in asked:
            for problem in recording.problems(cfg.train.megatron, group.sglang):
                yield SlimeError(problem, where=where, todo=way_out)
