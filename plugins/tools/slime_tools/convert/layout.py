"""The parallel layout that a Megatron checkpoint is cut for. It loads in any other, only faster in this one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slime.compose.derive import required_megatron
from slime.compose.rules import family_problems, layout_problems
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError, did_you_mean
from slime.layout import default_etp
from slime.models.bridge import HfConfig, ModelBridge
from slime.topology.topology import Topology

KEYS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
_KINDS = ("tensor", "pipeline", "expert")

Layout = Mapping[str, int]
"""Sizes by Megatron-core's own names."""


def least_ranks(layout: Layout) -> int:
    """The least number of ranks that a layout fits on."""
    tensor, pipeline, expert = (layout.get(f"{kind}_model_parallel_size", 1) for kind in _KINDS)
    expert *= layout.get("expert_tensor_parallel_size", default_etp(tensor, expert))
    return math.lcm(tensor, expert) * pipeline


def ranks_to_start(layout: Layout, processes: int) -> int:
    """A multiple of the ranks that the layout needs, near the number of processes."""
    least = least_ranks(layout)
    return max(1, processes // least) * least


def check_layout(layout: Layout, num_ranks: int, hf: HfConfig, bridge: ModelBridge) -> None:
    """Whether a model fits the layout, by the rules of `slime plan` and of the model's family.

    Raises:
        SlimeError: the first rule that it breaks.
    """
    architecture = bridge.transformer_config(hf)
    cfg = SlimeConfig()
    cfg.train.megatron = {**required_megatron(dict(layout)), **layout}
    cfg.cluster.num_trainers = num_ranks
    of_ranks = layout_problems(Topology(cfg, ()), architecture, bridge.weight_mapping(hf))
    for problem in (*of_ranks, *family_problems(bridge, hf, layout)):
        where, todo = (text.replace("train.megatron.", "--layout ") for text in (problem.where, problem.todo))
        raise SlimeError(problem.what, where=where, todo=todo)


def parse(words: Sequence[str]) -> Layout:
    """From `tensor_model_parallel_size=8 ...`.

    Raises:
        SlimeError: a word is not of this form, or names something else.
    """
    sizes: dict[str, int] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in KEYS:
            raise SlimeError(f"'{key}' is no size of a layout", where=word, todo=did_you_mean(key, KEYS))
        if not equals or not value.isdecimal() or not int(value):
            raise SlimeError("is not a number above 0", where=word, todo=f"Write it as {key}=2.")
        sizes[key] = int(value)
    if (expert := sizes.get("expert_model_parallel_size", 1)) > 1:
        tensor = sizes.get("tensor_model_parallel_size", 1)
        sizes.setdefault("expert_tensor_parallel_size", default_etp(tensor, expert))
    return sizes
