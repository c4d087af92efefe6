"""Weight mappings of the building blocks that model families share, under the names most checkpoints use.

A family's mapping is a sum of these: `embeddings(...) + norms() + gqa(...) + gated_mlp() + output(...)`. Their
counterparts are the blocks of the same names in `slime.train.specs` and `slime.architecture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from slime.contracts import HfConfig
from slime.weights.megatron.mapping import Layout, Rule, WeightMapping

Rules = tuple[Rule, ...]
Layers = tuple[int, ...] | None

_MEGATRON = "decoder.layers.{layer}."
_HF = "model.layers.{layer}."

PLAIN = Layout()
GATE_UP = Layout(parts=(1, 1))
FUSED_GATE_UP = Layout(parts=(1, 1), fused=True)


def _layer_rule(megatron: str, *hf: str, layout: Layout = PLAIN, layers: Layers = None) -> Rule:
    return Rule(_MEGATRON + megatron, tuple(_HF + name for name in hf), layout, layers)


def embeddings(vocab_size: int) -> Rules:
    """Token embeddings [vocab_size, hidden]."""
    layout = Layout(num_rows=vocab_size)
    return (Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), layout),)


def output(vocab_size: int, *, tied: bool) -> Rules:
    """Final norm and output layer [vocab_size, hidden].

    With tied embeddings Megatron's last pipeline stage holds its own copy of the embeddings as output layer.
    """
    hf = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return (
        Rule("decoder.final_layernorm.weight", ("model.norm.weight",)),
        Rule("output_layer.weight", (hf,), Layout(num_rows=vocab_size), exported=not tied),
    )


def norms() -> Rules:
    """The norms before attention and before the MLP."""
    return (
        _layer_rule("input_layernorm.weight", "input_layernorm.weight"),
        _layer_rule("pre_mlp_layernorm.weight", "post_attention_layernorm.weight"),
    )


def sandwich_norms() -> Rules:
    """The norms on the outputs of attention and MLP (specs with `post_norm=True`)."""
    return (
        _layer_rule("self_attention.linear_proj.post_layernorm.weight", "post_self_attn_layernorm.weight"),
        _layer_rule("mlp.linear_fc2.post_layernorm.weight", "post_mlp_layernorm.weight"),
    )


def gqa(num_heads: int, num_kv_heads: int, *, bias: bool = False, qk_norm: bool = False) -> Rules:
    """Grouped-query attention; Megatron keeps each key/value head behind the query heads that it serves."""
    per_group = Layout(parts=(num_heads // num_kv_heads, 1, 1), num_units=num_kv_heads)
    linear_qkv = [
        _layer_rule(
            f"self_attention.linear_qkv.{kind}", *(f"self_attn.{x}_proj.{kind}" for x in "qkv"), layout=per_group
        )
        for kind in (["weight", "bias"] if bias else ["weight"])
    ]
    qk_norms = [_layer_rule(f"self_attention.{x}_layernorm.weight", f"self_attn.{x}_norm.weight") for x in "qk"]
    linear_proj = _layer_rule("self_attention.linear_proj.weight", "self_attn.o_proj.weight")
    return (*linear_qkv, *(qk_norms if qk_norm else []), linear_proj)


def mla(*, q_lora: bool = True) -> Rules:
    """Multi-head latent attention; `q_lora` says that queries have a low-rank projection of their own.

    Its two down projections come behind one another: SGLang wants them in one bucket (`slime.weights.publisher.fused`).
    """
    names = {
        **({"linear_q_down_proj": "q_a_proj"} if q_lora else {"linear_q_proj": "q_proj"}),
        "linear_kv_down_proj": "kv_a_proj_with_mqa",
        **({"q_layernorm": "q_a_layernorm", "linear_q_up_proj": "q_b_proj"} if q_lora else {}),
        "kv_layernorm": "kv_a_layernorm",
        "linear_kv_up_proj": "kv_b_proj",
        "linear_proj": "o_proj",
    }
    return tuple(_layer_rule(f"self_attention.{ours}.weight", f"self_attn.{hf}.weight") for ours, hf in names.items())


def gated_mlp(layers: Layers = None, *, megatron: str = "mlp.", hf: str = "mlp.") -> Rules:
    """Gated MLP with gate and up projections of their own."""
    return (
        _layer_rule(
            f"{megatron}linear_fc1.weight",
            f"{hf}gate_proj.weight",
            f"{hf}up_proj.weight",
            layout=GATE_UP,
            layers=layers,
        ),
        _layer_rule(f"{megatron}linear_fc2.weight", f"{hf}down_proj.weight", layers=layers),
    )


def fused_gated_mlp(layers: Layers = None) -> Rules:
    """Gated MLP whose checkpoint keeps gate and up behind one another in a single tensor."""
    return (
        _layer_rule("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight", layout=FUSED_GATE_UP, layers=layers),
        _layer_rule("mlp.linear_fc2.weight", "mlp.down_proj.weight", layers=layers),
    )


def moe(layers: Layers = None, *, shared_expert: bool, correction_bias: bool) -> Rules:
    """Router, routed experts and, if any, the shared expert of the layers that have experts."""
    bias = _layer_rule("mlp.router.expert_bias", "mlp.gate.e_score_correction_bias", layers=layers)
    shared = gated_mlp(layers, megatron="mlp.shared_experts.", hf="mlp.shared_experts.")
    return (
        _layer_rule("mlp.router.weight", "mlp.gate.weight", layers=layers),
        *((bias,) if correction_bias else ()),
        *(shared if shared_expert else ()),
        *gated_mlp(layers, megatron="mlp.experts.local_experts.{expert}.", hf="mlp.experts.{expert}."),
    )


def indexer(layers: Layers = None) -> Rules:
    """Indexer of sparse attention, in the layers that have one."""
    names = ("wq_b.weight", "wk.weight", "k_norm.weight", "k_norm.bias", "weights_proj.weight")
    return tuple(
        _layer_rule(f"self_attention.indexer.{name}", f"self_attn.indexer.{name}", layers=layers) for name in names
    )


MTP_MODULES: Mapping[str, str] = MappingProxyType(
    {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "final_layernorm": "shared_head.norm"}
)
"""What a multi-token prediction layer has beside its decoder layer: Megatron's names, and those of most checkpoints."""


def mtp(layer: Rules, hf: str, *, modules: Mapping[str, str] = MTP_MODULES) -> Rules:
    """The multi-token prediction layer (arXiv 2412.19437, section 2.2), which most checkpoints number behind the last.

    Args:
        layer: blocks of the decoder layer inside it, such as `norms() + gqa(...) + moe(...)`.
        hf: what its tensors' names begin with, such as `model.layers.61.`.
        modules: the checkpoint's names of the two input norms, the projection and the output norm, by Megatron's.
    """
    own = [Rule(f"mtp.layers.0.{ours}.weight", (f"{hf}{theirs}.weight",)) for ours, theirs in modules.items()]
    return (*own, *(_moved(rule, hf) for rule in layer))


def _moved(rule: Rule, hf: str) -> Rule:
    """A decoder layer's rule as that of the layer inside the prediction layer."""
    megatron = "mtp.layers.0.transformer_layer." + rule.megatron.removeprefix(_MEGATRON)
    return replace(rule, megatron=megatron, hf=tuple(hf + name.removeprefix(_HF) for name in rule.hf), layers=None)


def mtp_copies(hf: str) -> dict[str, str]:
    """Copies of embeddings and output layer that many checkpoints keep in their prediction layer; engines skip them."""
    return {f"{hf}embed_tokens.weight": "model.embed_tokens.weight", f"{hf}shared_head.head.weight": "lm_head.weight"}


def moe_decoder(hf: HfConfig, attention: Rules) -> WeightMapping:
    """The whole table of a decoder with `first_k_dense_replace` dense layers, then experts with a correction bias.

    Args:
        hf: sizes, and whether there are a shared expert, tied embeddings, and a multi-token prediction layer, which is
            numbered behind the last.
        attention: of every layer; what it gives only some layers, the prediction layer has as well.
    """
    num_dense, num_layers = hf["first_k_dense_replace"], hf["num_hidden_layers"]
    dense, sparse = tuple(range(min(num_dense, num_layers))), tuple(range(num_dense, num_layers))
    shared_expert, copies = hf["n_shared_experts"] > 0, dict[str, str]()
    rules = (
        *embeddings(hf["vocab_size"]),
        *norms(),
        *attention,
        *gated_mlp(dense),
        *moe(sparse, shared_expert=shared_expert, correction_bias=True),
        *output(hf["vocab_size"], tied=hf.get("tie_word_embeddings", False)),
    )
    if hf.get("num_nextn_predict_layers"):
        prefix = f"model.layers.{num_layers}."
        layer = (*norms(), *attention, *moe(shared_expert=shared_expert, correction_bias=True))
        rules, copies = (*rules, *mtp(layer, prefix)), mtp_copies(prefix)
    return WeightMapping(rules, num_layers, hf["n_routed_experts"], copies=copies)
