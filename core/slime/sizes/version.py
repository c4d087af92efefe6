"""Bytes of a version as it is published. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from slime.models.shapes import Block, Model
from slime.sizes.parameters import Weight
from slime.topology.quantization import WeightFormat
from slime.topology.topology import Topology


def is_quantized(form: WeightFormat | None, weight: Weight) -> bool:
    """Whether engines with this format quantise a weight: all matrices inside layers are, but the routers'."""
    plain = weight.block in (Block.embedding, Block.output, Block.norm, Block.router) or len(weight.shape) == 1
    return form is not None and not plain and not weight.stated.in_bf16


def bytes_a_weight(form: WeightFormat | None, weight: Weight, trained: float) -> float:
    """Bytes of a weight in engines, an element; `trained`: as it is trained."""
    return form.bytes_a_weight if form and is_quantized(form, weight) else trained


def version_bytes(topology: Topology, weights: Sequence[Weight], model: Model) -> int:
    travels = partial(bytes_a_weight, topology.weight_format, trained=width(topology, model))
    return round(sum(travels(weight) * weight.numel for weight in sent(topology, weights)))


def sent(topology: Topology, weights: Sequence[Weight]) -> list[Weight]:
    return [weight for weight in weights if topology.drafts or not weight.drafts]


def width(topology: Topology, model: Model) -> int:
    """Bytes a trained parameter."""
    return 2 if model.get("bf16", topology.cluster.on_gpus) else 4
