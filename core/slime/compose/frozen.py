"""Engine groups that have models of their own (`rollout.engines.NAME.model`): whether they can be served."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.hf import num_labels, read_hf_config, scores
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.sizes.model import frozen_sizes
from slime.topology.topology import Topology


def frozen_problems(topology: Topology) -> Iterator[SlimeError]:
    """Models that are not there, or score with more than one number."""
    for group in topology.frozen:
        assert group.model, "it has one of its own"
        where = f"rollout.engines.{group.name}.model"
        try:
            hf = read_hf_config(group.model)
        except SlimeError as problem:
            yield problem.under(where)
            continue
        if not any(resolve(group.model).glob("*.safetensors")):
            todo = "Fetch the weights: nothing is published to these engines."
            yield SlimeError(f"there are no *.safetensors files in {group.model}", where=where, todo=todo)
        if scores(hf) and (count := num_labels(hf)) != 1:
            what = f"{' '.join(hf['architectures'])} has {count} labels, and a reward is one number"
            yield SlimeError(what, where=where, todo="Name a reward model with one (id2label of config.json).")


def frozen_warnings(topology: Topology) -> Iterator[SlimeError]:
    """GPUs whose memory is not counted."""
    if not topology.cluster.on_gpus:
        return
    known = frozen_sizes(topology)
    for group in topology.frozen:
        if group.name not in known:
            what = (
                f"the memory of engine group '{group.name}' is not counted: no installed plugin knows its model's sizes"
            )
            todo = "See that the model fits its devices, or give the group more of them."
            yield SlimeError(what, where=f"rollout.engines.{group.name}.model", todo=todo)
