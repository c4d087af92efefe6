"""Mixture of experts: keywords, names, shapes and costs. No torch.

The layers are in `.module` and `.router`, what engines record of them in `.replay` and `.routes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.models.blocks import BF16, UNEVEN_EXPERTS, BuildingBlock, RankTokens, Saved
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.rules import Layers, Rules, layer_rule
from slime.models.shapes import Block, Cut, Shape, gated
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, mlp

LOAD_BALANCING_LOSS, Z_LOSS = "load_balancing_loss", "z_loss"
"""Metrics: the losses that keep the experts busy alike and the router's logits small."""


def softmax_keywords(reader: ConfigReader, *, experts_key: str) -> dict[str, Any]:
    """Experts in every layer, as many as the field `experts_key` says, with softmax scores over all of them; no shared
    expert, no auxiliary loss."""
    return {
        "num_moe_experts": reader.get(experts_key),
        "moe_layer_freq": 1,
        "moe_ffn_hidden_size": reader.get("moe_intermediate_size"),
        "moe_router_topk": reader.get("num_experts_per_tok"),
        "moe_router_score_function": "softmax",
        # The softmax of the chosen logits is the softmax of all, normalised over the chosen ones.
        "moe_router_pre_softmax": not reader.get("norm_topk_prob"),
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
    }


def sigmoid_keywords(reader: ConfigReader) -> dict[str, Any]:
    """Dense layers first, then routed experts with sigmoid scores, a correction bias and a shared expert.

    Routing of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2). The correction bias is a weight of the checkpoint: its
    update rate is 0 unless `train.megatron` sets another. Fields in which a checkpoint or transformers says all this
    again must agree.
    """
    topk, num_dense = reader.get("num_experts_per_tok"), reader.get("first_k_dense_replace")
    num_experts = reader.get("n_routed_experts")
    reader.only("num_local_experts", num_experts, None)
    has_experts = [layer >= num_dense for layer in range(reader.get("num_hidden_layers"))]
    reader.only("scoring_func", "sigmoid")
    reader.only("topk_method", "noaux_tc")
    reader.only("moe_layer_freq", 1)
    reader.only("mlp_layer_types", None, ["sparse" if of_layer else "dense" for of_layer in has_experts])
    reader.only("norm_topk_prob", topk > 1)  # Megatron normalises sigmoid scores exactly when there are several
    expert_size = reader.get("moe_intermediate_size")
    return {
        "num_moe_experts": num_experts,
        "moe_layer_freq": [int(of_layer) for of_layer in has_experts],
        "moe_ffn_hidden_size": expert_size,
        "moe_shared_expert_intermediate_size": expert_size * reader.get("n_shared_experts") or None,
        "moe_router_topk": topk,
        "moe_router_score_function": "sigmoid",
        "moe_router_pre_softmax": True,
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_topk_scaling_factor": reader.get("routed_scaling_factor"),
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        **_expert_groups(reader, num_experts, topk),
    }


def _expert_groups(reader: ConfigReader, num_experts: int, topk: int) -> dict[str, Any]:
    num_groups, kept_groups = reader.get("n_group", 1), reader.get("topk_group", 1)
    if num_groups == 1:
        return {}
    if num_experts % num_groups or num_experts < 2 * num_groups:
        reader.refuse("n_group", num_groups, f"Groups of the {num_experts} experts are alike, of two or more.")
    if topk // kept_groups != 2 or kept_groups > num_groups:
        why = "Megatron ranks a group of experts by its best num_experts_per_tok // topk_group, the models by two."
        reader.refuse("topk_group", kept_groups, f"With 'num_experts_per_tok: {topk}', 'n_group: {num_groups}': {why}")
    return {"moe_router_num_groups": num_groups, "moe_router_group_topk": kept_groups}


def traits(keywords: Mapping[str, Any]) -> tuple[Traits, ...]:
    """Of a mixture of experts, by its keywords of Megatron's config."""
    from slime_megatron.mixture_of_experts.replay import DIFFERS, REPLAYED, RoutedExperts

    recording = RoutedExperts.of(keywords)
    losses = (REPLAYED, DIFFERS, LOAD_BALANCING_LOSS, Z_LOSS)
    return (Traits(name="a mixture of experts", layer_losses=losses, recording=recording, shares_prompts=True),)


def rules(layers: Layers = None, *, shared_expert: bool, correction_bias: bool) -> Rules:
    """Router, routed experts and, if any, the shared expert of the layers that have experts."""
    bias = layer_rule("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias", layers=layers)
    shared = mlp.rules(layers, megatron="mlp.shared_experts.", hf="mlp.shared_experts.")
    return BLOCK.state(
        layer_rule("mlp.router.weight", "mlp.gate.weight", layers=layers),
        *((bias,) if correction_bias else ()),
        *(shared if shared_expert else ()),
        *mlp.rules(layers, megatron="mlp.experts.local_experts.{expert}.", hf="mlp.experts.{expert}."),
    )


def decoder_mapping(hf: HfConfig, attention: Rules) -> WeightMapping:
    """The whole table of a decoder with `first_k_dense_replace` dense layers, then experts with a correction bias.

    Args:
        hf: sizes, and whether there are a shared expert and tied embeddings.
        attention: of every layer.
    """
    num_dense, num_layers = hf["first_k_dense_replace"], hf["num_hidden_layers"]
    dense, experts = tuple(range(min(num_dense, num_layers))), tuple(range(num_dense, num_layers))
    bias = {"shared_expert": hf["n_shared_experts"] > 0, "correction_bias": True}
    table = decoder.rules(hf, attention, (*mlp.rules(dense), *rules(experts, **bias)))
    return WeightMapping(table, num_layers, hf["n_routed_experts"])


_SHARED = gated("moe_shared_expert_intermediate_size", Cut.tensor, Block.shared)
_EXPERTS = gated("moe_ffn_hidden_size", Cut.expert, Block.experts)
SHAPES = {
    "mlp.router.expert_bias": Shape(lambda m: (m["num_moe_experts"],), Cut.whole, Block.correction),
    "mlp.router.weight": Shape(lambda m: (m["num_moe_experts"], m["hidden_size"]), Cut.whole, Block.router),
    **{f"mlp.shared_experts.{name}": shape for name, shape in _SHARED.items()},
    **{f"mlp.experts.local_experts.{{expert}}.{name}": shape for name, shape in _EXPERTS.items()},
}


class _Experts(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """Tokens as the experts get them, [gate | up], activation; also those of the shared expert and the router.

        The backward pass has gradients of all of it, tokens on their way back, and one of the layer's weights in bf16.
        """
        model, grid, routed = tokens.model, tokens.grid, _routed(tokens)
        hidden = BF16 * model["hidden_size"] * routed
        saved, transient, _ = mlp.gate_up(model["moe_ffn_hidden_size"] / grid.etp, routed)
        if "moe_act" in tokens.recomputed:
            transient, saved = transient + saved / 3, saved * 2 / 3
        router = 4 * 3 * model["num_moe_experts"] * tokens.shard
        kept, transient = saved + hidden + router, transient + saved / 3 + 2 * hidden
        if size := model.get("moe_shared_expert_intermediate_size"):
            of_shared = mlp.gate_up(size / grid.tp, tokens.rank_tokens).kept
            kept += 0 if "shared_experts" in tokens.recomputed else of_shared
        if "moe" in tokens.recomputed:
            kept, transient = 0.0, kept + transient
        weights = BF16 * 2 * model["hidden_size"] * model["moe_ffn_hidden_size"] / grid.etp
        return Saved(kept, transient + weights * model["num_moe_experts"] / grid.ep)


def _routed(tokens: RankTokens) -> float:
    """Tokens that the experts of the busiest rank get, each of their layers."""
    grid = tokens.grid
    uneven = UNEVEN_EXPERTS if grid.ep > 1 else 1.0
    return float(tokens.shard * tokens.model["moe_router_topk"] * grid.etp * uneven)


BLOCK = _Experts(SHAPES)
