"""The parallel layout that a Megatron checkpoint is cut for. It loads in any other, only faster in this one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slime.config.derive import required_megatron
from slime.config.schema import SlimeConfig
from slime.contracts import HfConfig, ModelBridge
from slime.errors import SlimeError, did_you_mean
from slime.plan.rules import layout_problems
from slime.topology.layout import default_etp, read_grid, split_layers

KEYS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)


@dataclass(frozen=True)
class Layout:
    """Sizes by Megatron-core's own names."""

    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_ranks(self) -> int:
        """The least number of ranks that it fits on."""
        tensor, pipeline, expert = (self.sizes.get(f"{kind}_model_parallel_size", 1) for kind in _KINDS)
        expert *= self.sizes.get("expert_tensor_parallel_size", default_etp(tensor, expert))
        return math.lcm(tensor, expert) * pipeline


def check_layout(layout: Layout, num_ranks: int, hf: HfConfig, bridge: ModelBridge) -> None:
    """Whether a model fits the layout, by the rules of `slime plan`.

    Raises:
        SlimeError: the first rule that it breaks.
    """
    architecture = bridge.transformer_config(hf)
    cfg = SlimeConfig()
    cfg.train.megatron = {**required_megatron(dict(layout.sizes)), **layout.sizes}
    grid = read_grid(num_ranks, layout.sizes)
    for problem in layout_problems(cfg, grid, architecture):
        raise problem
    split_layers(architecture["num_layers"], grid, layout.sizes)


_KINDS = ("tensor", "pipeline", "expert")


def parse(words: Sequence[str]) -> Layout:
    """From `tensor_model_parallel_size=8 ...`.

    Raises:
        SlimeError: a word is not of this form, or names something else.
    """
    sizes = {}
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
    return Layout(sizes)
