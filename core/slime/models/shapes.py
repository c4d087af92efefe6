"""What blocks state of the shapes of their parameters (`slime.models.blocks.BuildingBlock.shapes`). No torch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Model = Mapping[str, Any]
"""Keywords of Megatron's TransformerConfig, with `vocab_size`."""

Sizes = Callable[[Model], tuple[int, ...]]
"""Shape of the whole parameter, of one expert."""


class Block(enum.Enum):
    embedding = "embedding"
    attention = "attention"
    mlp = "dense MLP"
    router = "router"
    correction = "correction bias"
    shared = "shared expert"
    experts = "experts"
    norm = "norms"
    projection = "projection"
    output = "output layer"


class Cut(enum.Enum):
    """What a weight is cut into parts by, as the block's module builds it."""

    whole = "every tensor-parallel rank holds it"
    tensor = "tensor parallelism"
    expert = "expert parallelism, each expert by expert tensor parallelism"


EngineShare = Callable[[float, Model, int], float]
"""Parameters on an engine's rank, from those of the weight, the model and the ranks that share its attention."""


class Shape(NamedTuple):
    """The shape of one parameter.

    Attributes:
        in_bf16: engines hold it so, also under `rollout.fp8`.
        engine_share: how engines share it out, where that does not follow from `block` and `cut`.
        absorbed: engines keep it once more, in bf16.
    """

    sizes: Sizes
    cut: Cut
    block: Block
    in_bf16: bool = False
    engine_share: EngineShare | None = None
    absorbed: bool = False


HIDDEN_NORM = Shape(lambda m: (m["hidden_size"],), Cut.whole, Block.norm)


def gated(size: str, cut: Cut, block: Block) -> dict[str, Shape]:
    """The shapes of a gated MLP; `size` names the keyword with its inner size."""
    return {
        "linear_fc1.weight": Shape(lambda m: (2 * m[size], m["hidden_size"]), cut, block),
        "linear_fc2.weight": Shape(lambda m: (m["hidden_size"], m[size]), cut, block),
    }
