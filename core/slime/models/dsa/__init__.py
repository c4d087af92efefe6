"""Sparse attention (DSA): keywords, names, shapes, traits, and which layers have an indexer. No torch.

A layer without an indexer attends to the keys that the latest layer with one chose (arXiv 2603.12201), so both must
lie in one pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slime.contracts import HfConfig
from slime.errors import SlimeError
from slime.models.config_reader import ConfigReader
from slime.models.rules import Layers, Rules, layer_rule
from slime.models.shapes import Block, Cut, Shape, Sizes
from slime.models.traits import Traits
from slime.topology.layout import SIZE_KEYS, Grid, split_layers


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """Indexer of sparse latent attention; to be merged with `slime.models.mla.keywords`."""
    return {
        "dsa_indexer_n_heads": reader.get("index_n_heads"),
        "dsa_indexer_head_dim": reader.get("index_head_dim"),
        "dsa_indexer_topk": reader.get("index_topk"),
        "dsa_indexer_layers": index_layers(reader),
        "dsa_indexer_rotary_interleaved": bool(reader.get("indexer_rope_interleave", False)),
    }


def index_layers(reader: ConfigReader) -> list[bool]:
    """For every layer: does it choose keys (True) or reuse the latest choice?

    config.json says so by layer (`indexer_types`, `index_topk_pattern`), or by `index_topk_freq` f and
    `index_skip_topk_offset` o: counted from 1, layers 1 to o choose, then every f-th. Without any of them all do.
    """
    num_layers = reader.get("num_hidden_layers")
    frequency, offset = reader.get("index_topk_freq", None) or 1, reader.get("index_skip_topk_offset", None) or 2
    named = reader.get("indexer_types", None) or reader.get("index_topk_pattern", None)
    if named:
        layers = [kind in ("full", "F") for kind in named[:num_layers]]
    else:
        layers = [max(layer - offset + 1, 0) % frequency == 0 for layer in range(num_layers)]
    if len(layers) < num_layers or not layers[0]:
        raise SlimeError(
            f"{len(layers)} of {num_layers} layers are said to choose keys or reuse them, the first must choose",
            where="config.json",
            todo="Take the config.json of the checkpoint.",
        )
    return layers


def choosing_layers(hf: HfConfig) -> tuple[int, ...]:
    """Layers, counted from 0, that have an indexer."""
    return tuple(layer for layer, chooses in enumerate(index_layers(ConfigReader(hf))) if chooses)


def rules(layers: Layers = None) -> Rules:
    """Indexer of sparse attention, in the layers that have one."""
    names = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    indexer = (
        layer_rule(f"self_attention.indexer.{name}", f"self_attn.indexer.{name}", layers=layers) for name in names
    )
    return tuple(replace(rule, learns_by=(TRAITS.learns_by,)) for rule in indexer)


def problems(hf: HfConfig, megatron: Mapping[str, Any]) -> list[str]:
    """Pipeline stages that would start on a layer without an indexer, and parts that cannot be computed again by
    themselves: a sentence each."""
    return [*_stage_problems(hf, megatron), *_recompute_problems(megatron)]


def _stage_problems(hf: HfConfig, megatron: Mapping[str, Any]) -> list[str]:
    sizes = {name: megatron.get(SIZE_KEYS[name]) or 1 for name in ("pp", "vpp")}
    try:
        stages = split_layers(hf["num_hidden_layers"], Grid(world_size=sizes["pp"], **sizes), megatron)
    except SlimeError:
        return []  # layers that cannot be divided are the planner's own finding
    choosing = choosing_layers(hf)
    firsts = sorted(layers[0] for chunks in stages for layers in chunks if layers)
    return [_problem(first, choosing) for first in firsts if first not in choosing]


def _recompute_problems(megatron: Mapping[str, Any]) -> list[str]:
    modules = megatron.get("recompute_modules") or ["core_attn"]  # Megatron-core's default
    refused = [module for module in ("core_attn", "mla_up_proj") if module in modules]
    if megatron.get("recompute_granularity") != "selective" or not refused:
        return []
    return [
        f"sparse attention has no part that could be computed again by itself; leave {' and '.join(refused)} out of "
        "train.megatron.recompute_modules, or set train.megatron.recompute_granularity=full"
    ]


def _problem(first: int, choosing: tuple[int, ...]) -> str:
    source = max(layer for layer in choosing if layer < first)
    later = [layer for layer in choosing if layer > first]
    nearest = f"{source + 1} or {later[0] + 1}" if later else f"{source + 1}"
    return (
        f"a pipeline stage would start on layer {first + 1}, which reuses the keys that layer {source + 1} chooses; "
        f"start it on layer {nearest} with train.megatron.pipeline_model_parallel_layout"
    )


def _config_class() -> type:
    from slime.models.dsa.config import SparseLatentConfig

    return SparseLatentConfig


TRAITS = Traits(
    learns_by="train.megatron.dsa_indexer_loss_coeff",
    config_class=_config_class,
    contiguous=True,  # every query attends to the same number of keys
)

_SIZES: dict[str, Sizes] = {
    "wq_b.weight": lambda m: (m["dsa_indexer_n_heads"] * m["dsa_indexer_head_dim"], m["q_lora_rank"]),
    "wk.weight": lambda m: (m["dsa_indexer_head_dim"], m["hidden_size"]),
    "k_norm.weight": lambda m: (m["dsa_indexer_head_dim"],),
    "k_norm.bias": lambda m: (m["dsa_indexer_head_dim"],),
    "weights_proj.weight": lambda m: (m["dsa_indexer_n_heads"], m["hidden_size"]),
}
SHAPES = {f"self_attention.indexer.{name}": Shape(sizes, Cut.whole, Block.indexer) for name, sizes in _SIZES.items()}
