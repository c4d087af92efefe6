"""Sparse attention (DSA): keywords, names, shapes, costs, traits, and which layers have an indexer. No torch.

The layers are in `.module`.

A layer without an indexer attends to the keys that the latest layer with one chose (arXiv 2603.12201), so both must
lie in one pipeline stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import slime_megatron.latent_attention as mla
from slime.errors import SlimeError
from slime.layout import SIZE_KEYS, Grid, split_layers
from slime.models.blocks import BF16, Attention, BuildingBlock, Cache, RankTokens, Saved
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.rules import Layers, Rules, layer_rule
from slime.models.shapes import Block, Cut, Model, Shape, Sizes
from slime.models.traits import Traits


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """Indexer of sparse latent attention; to be merged with `slime_megatron.latent_attention.keywords`."""
    return {
        "dsa_indexer_n_heads": reader.get("index_n_heads"),
        "dsa_indexer_head_dim": reader.get("index_head_dim"),
        "dsa_indexer_topk": reader.get("index_topk"),
        "dsa_indexer_layers": index_layers(reader),
        "dsa_indexer_rotary_interleaved": bool(reader.get("indexer_rope_interleave", False)),
    }


def index_layers(reader: ConfigReader) -> list[bool]:
    """For every layer: does it choose keys (True) or reuse the latest choice?

    config.json says so by layer (`index_topk_pattern`), or by `index_topk_freq` f and `index_skip_topk_offset` o:
    counted from 1, layers 1 to o choose, then every f-th. Without any of them all do. `indexer_types`, which
    transformers reads first and engines do not read, must say the same.
    """
    num_layers = reader.get("num_hidden_layers")
    frequency, offset = reader.get("index_topk_freq", None) or 1, reader.get("index_skip_topk_offset", None) or 2
    if pattern := reader.get("index_topk_pattern", None):
        layers = [kind in ("full", "F") for kind in pattern[:num_layers]]
    else:
        layers = [max(layer - offset + 1, 0) % frequency == 0 for layer in range(num_layers)]
    if (kinds := reader.get("indexer_types", None)) and [kind == "full" for kind in kinds] != layers:
        raise SlimeError(
            "'indexer_types' are other layers than those of 'index_topk_pattern' or 'index_topk_freq'",
            where="config.json",
            todo="Make them agree: transformers reads the former, engines the latter.",
        )
    if len(layers) < num_layers or not layers[0]:
        raise SlimeError(
            f"by 'index_topk_pattern' or 'index_topk_freq' {len(layers)} of {num_layers} layers choose or reuse keys, "
            "the first must choose",
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
    return INDEXER.state(*(replace(rule, learns_by=(TRAITS.learns_by,)) for rule in indexer))


def attention_rules(layers: Layers = None) -> Rules:
    """Latent attention to chosen keys: in all layers, with an indexer in the layers that have one."""
    return (*BLOCK.state(*mla.rules()), *rules(layers))


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
    return _reusing([first for first in firsts if first not in choosing], choosing)


def _recompute_problems(megatron: Mapping[str, Any]) -> list[str]:
    modules = megatron.get("recompute_modules") or ["core_attn"]  # Megatron-core's default
    refused = [module for module in ("core_attn", "mla_up_proj") if module in modules]
    if megatron.get("recompute_granularity") != "selective" or not refused:
        return []
    return [
        f"sparse attention has no part that could be computed again by itself; leave {' and '.join(refused)} out of "
        "train.megatron.recompute_modules, or set train.megatron.recompute_granularity=full"
    ]


def _reusing(firsts: list[int], choosing: tuple[int, ...]) -> list[str]:
    """A sentence about all stages that start on these layers, if there are any."""
    if not firsts:
        return []
    near = {max(layer for layer in choosing if layer < first) for first in firsts}
    near |= {min((layer for layer in choosing if layer > first), default=choosing[-1]) for first in firsts}
    starts = "a pipeline stage would start on layer" if len(firsts) == 1 else "pipeline stages would start on layers"
    reuses = "reuses" if len(firsts) == 1 else "reuse"
    layers, better = (", ".join(map(str, listed)) for listed in (firsts, sorted(near)))
    what = f"{starts} {layers} (counted from 0), which {reuses} the keys that an earlier layer chooses"
    return [f"{what}; the nearest to start on are {better}"]


def _config_class() -> type:
    from slime_megatron.sparse_attention.config import SparseLatentConfig

    return SparseLatentConfig


INDEXER_LOSS = "indexer_loss"
TRAITS = Traits(
    name="sparse attention",
    learns_by="train.megatron.dsa_indexer_loss_coeff",
    config_class=_config_class,
    contiguous=True,  # every query attends to the same number of keys
    layer_losses=(INDEXER_LOSS,),
    shares_prompts=True,
)

_SIZES: dict[str, Sizes] = {
    "wq_b.weight": lambda m: (m["dsa_indexer_n_heads"] * m["dsa_indexer_head_dim"], m["q_lora_rank"]),
    "wk.weight": lambda m: (m["dsa_indexer_head_dim"], m["hidden_size"]),
    "k_norm.weight": lambda m: (m["dsa_indexer_head_dim"],),
    "k_norm.bias": lambda m: (m["dsa_indexer_head_dim"],),
    "weights_proj.weight": lambda m: (m["dsa_indexer_n_heads"], m["hidden_size"]),
}
_IN_BF16 = ("wk.weight", "weights_proj.weight")
INDEXER_SHAPES = {
    f"self_attention.indexer.{name}": Shape(sizes, Cut.whole, Block.attention, in_bf16=name in _IN_BF16)
    for name, sizes in _SIZES.items()
}

INDEX_CELL = 132
"""Bytes of a token's index keys in an engine's cache: 128 in FP8 and a scale."""
FP8_LATENT = 656
"""Bytes of a token's latent in FP8 as FlashMLA stores it, where the pool is sized with one byte an entry."""


class _Attention(BuildingBlock):
    page = 64
    cache_dtypes = ("auto", "bfloat16", "bf16", "fp8_e4m3")

    def saved(self, tokens: RankTokens) -> Saved:
        """`SparseLatentAttention`. Rows that see no more keys than are chosen attend to the heads' own keys, as in
        latent attention. The others keep their queries, also as long as latents, and the mean of latents, once more
        behind the trade of heads for tokens. The outputs of both are put together."""
        model, of_rank = tokens.model, tokens.rank_tokens
        heads, latents = model["num_attention_heads"] / tokens.grid.tp, model["kv_lora_rank"]
        latent, size = latents + model["qk_pos_emb_head_dim"], model["qk_head_dim"] + model["qk_pos_emb_head_dim"]
        sparse = max(0.0, 1 - model["dsa_indexer_topk"] / tokens.longest)
        dense, transient, _ = replace(tokens, keys_a_row=1.0).full_attention(heads, heads, size, model["v_head_dim"])
        traded = 2 if tokens.grid.tp > 1 else 1
        rows = BF16 * of_rank * heads * (model["qk_head_dim"] + latent + traded * latents) + 4 * heads * of_rank
        gradients = 2 * BF16 * of_rank * heads * (latent + latents)
        shared = BF16 * latent * tokens.pack
        # A prompt's keys and values of the heads' own, once more for each sample whose queries see all of it.
        read = BF16 * heads * (size + model["v_head_dim"]) * of_rank * (tokens.keys_a_row - 1)
        out = BF16 * heads * model["v_head_dim"] * of_rank
        kept = mla.compressed(tokens) + sparse * rows + (1 - sparse) * dense + out + shared + read
        return Saved(kept, sparse * gradients + (1 - sparse) * transient + 3 * shared + read)

    def attention(self, model: Model, layer: int) -> Attention:
        """Scores and the mean of latents, of every head, over the chosen keys."""
        latent = 2 * model["kv_lora_rank"] + model["qk_pos_emb_head_dim"]
        return Attention(float(2 * model["num_attention_heads"] * latent), model["dsa_indexer_topk"])

    def exchanged(self, model: Model, tp: int) -> float:
        """Latents and index keys, which all heads share."""
        return float(BF16 * (model["kv_lora_rank"] + model["qk_pos_emb_head_dim"] + model["dsa_indexer_head_dim"]))

    def cache(self, model: Model, attention_tp: int, *, fp8: bool) -> Cache:
        """Latents and index keys, whole on every rank; SGLang does not release the latter."""
        latent = mla.latent_cell(model, fp8=fp8)
        return Cache(latent + INDEX_CELL, (FP8_LATENT if fp8 else latent) + INDEX_CELL, INDEX_CELL)


class _Indexer(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """The chosen keys, which later layers and recomputation attend to as well."""
        chosen = min(tokens.model["dsa_indexer_topk"], tokens.longest)
        return Saved(0.0, lasting=4 * chosen * tokens.shard)

    def attention(self, model: Model, layer: int) -> Attention:
        """Scores of all keys."""
        return Attention(float(2 * model["dsa_indexer_n_heads"] * model["dsa_indexer_head_dim"]))


BLOCK, INDEXER = _Attention(mla.SHAPES), _Indexer(INDEXER_SHAPES)
