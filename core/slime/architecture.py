"""Megatron-core keywords of the building blocks that model families share, from the fields of a HF `config.json`.

Nothing here imports torch. A bridge reads its config.json through one `ConfigReader`, block by block, and ends with
`ConfigReader.finish`, which refuses what no block has read: a field that changes the model is never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.config.fp8 import KEY
from slime.contracts import HfConfig
from slime.errors import SlimeError

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_PROVENANCE = ("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version")
_NEUTRAL = frozenset({*_TOKEN_IDS, *_PROVENANCE, "dtype", "torch_dtype", "use_cache"})
"""Fields that say nothing about the computation of one forward pass in training."""

_REQUIRED = object()
_CONVERT = "Run 'slime convert fp8-to-bf16' and train from its folder; rollout.fp8=<this folder> generates in FP8."


class ConfigReader:
    """A config.json that remembers which fields were read."""

    def __init__(self, hf: HfConfig, where: str = "config.json") -> None:
        self._hf, self._where = hf, where
        self._read: set[str] = set()

    def get(self, key: str, default: Any = _REQUIRED) -> Any:
        """The field's value, or the default; a SlimeError if it is missing and has none."""
        self._read.add(key)
        value = self._hf.get(key, default)
        if value is _REQUIRED:
            raise SlimeError(
                f"the field '{key}' is missing", where=self._where, todo="Take the config.json of the checkpoint."
            )
        return value

    def only(self, key: str, *supported: Any) -> Any:
        """The field's value, which must be one of `supported`; the first of them if it is missing."""
        value = self.get(key, supported[0])
        if value not in supported:
            self._refuse(key, value, f"Supported: {', '.join(map(repr, supported))}.")
        return value

    def finish(self) -> None:
        """Refuse a field that nobody read, unless it is neutral or switched off (null, false, 0, empty)."""
        for key, value in self._hf.items():
            if value and key not in self._read and key not in _NEUTRAL:
                todo = (
                    _CONVERT if key == KEY else "It may change the model; the family's plugin would have to support it."
                )
                self._refuse(key, value, todo)

    def _refuse(self, key: str, value: Any, todo: str) -> None:
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."
        raise SlimeError(f"'{key}: {shown}' is not supported for this model family", where=self._where, todo=todo)


def decoder(reader: ConfigReader) -> dict[str, Any]:
    """Sizes and norms of a pre-norm decoder with a SiLU-gated MLP and RMSNorm."""
    reader.only("attention_dropout", 0, 0.0)
    return {
        "num_layers": reader.get("num_hidden_layers"),
        "hidden_size": reader.get("hidden_size"),
        "ffn_hidden_size": reader.get("intermediate_size"),
        "activation_func": reader.only("hidden_act", "silu"),
        "gated_linear_unit": True,
        "add_bias_linear": False,
        "normalization": "RMSNorm",
        "layernorm_epsilon": reader.get("rms_norm_eps"),
        "init_method_std": reader.get("initializer_range", 0.02),
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }


def gqa(reader: ConfigReader, *, bias: bool, qk_norm: bool, rotary_interleaved: bool) -> dict[str, Any]:
    """Grouped-query attention.

    Args:
        bias: biases on the query, key and value projections.
        qk_norm: RMSNorm on each query and key head.
        rotary_interleaved: rotate neighbouring dimensions (GPT-J) instead of the two halves (GPT-NeoX).
    """
    num_heads = reader.get("num_attention_heads")
    return {
        "num_attention_heads": num_heads,
        "num_query_groups": reader.get("num_key_value_heads", num_heads),
        "kv_channels": reader.get("head_dim", None) or reader.get("hidden_size") // num_heads,
        "add_qkv_bias": bias,
        "qk_layernorm": qk_norm,
        "rotary_interleaved": rotary_interleaved,
    }


def mla(reader: ConfigReader) -> dict[str, Any]:
    """Multi-head latent attention (arXiv 2405.04434, section 2.1); rotary embeddings plain or scaled by YaRN.

    Every norm uses `rms_norm_eps`, as the engine's do.
    """
    num_heads = reader.get("num_attention_heads")
    reader.only("num_key_value_heads", num_heads)
    reader.only("attention_bias", False)
    reader.only("rope_interleave", True)
    for derived in ("head_dim", "qk_head_dim"):
        reader.get(derived, None)
    return {
        "multi_latent_attention": True,
        "num_attention_heads": num_heads,
        "q_lora_rank": reader.get("q_lora_rank", None),
        "kv_lora_rank": reader.get("kv_lora_rank"),
        "qk_head_dim": reader.get("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": reader.get("qk_rope_head_dim"),
        "v_head_dim": reader.get("v_head_dim"),
        "qk_layernorm": True,
        **_latent_rotary(reader),
    }


def _latent_rotary(reader: ConfigReader) -> dict[str, Any]:
    parameters, kind, base = _rope_parameters(reader, "default", "yarn")
    reader.only("partial_rotary_factor", 1.0)
    if kind == "default":
        return {"rope_type": "rope", "rotary_base": base}
    mscale, mscale_all_dim = parameters.get("mscale", 1.0), parameters.get("mscale_all_dim", 0.0)
    if not mscale_all_dim and mscale != 1.0:
        raise SlimeError(
            f"'mscale: {mscale}' without 'mscale_all_dim' is not supported",
            where="config.json",
            todo="Engines and trainer read it differently.",
        )
    return {
        "rope_type": "yarn",
        "rotary_base": base,
        "rotary_scaling_factor": parameters["factor"],
        "original_max_position_embeddings": parameters["original_max_position_embeddings"],
        "beta_fast": parameters.get("beta_fast", 32),
        "beta_slow": parameters.get("beta_slow", 1),
        "mscale": mscale,
        "mscale_all_dim": mscale_all_dim,
    }


def softmax_moe(reader: ConfigReader, *, experts_key: str) -> dict[str, Any]:
    """Experts in every layer, with softmax scores over all of them; no shared expert, no auxiliary loss.

    Args:
        experts_key: the field with the number of experts.
    """
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


def sigmoid_moe(reader: ConfigReader) -> dict[str, Any]:
    """Dense layers first, then routed experts with sigmoid scores, a correction bias and a shared expert.

    Routing of DeepSeek-V3 (arXiv 2412.19437, section 2.1.2). The correction bias is a weight of the checkpoint: its
    update rate is 0 unless `train.megatron` sets another. Fields in which a checkpoint or transformers says all this
    again must agree.
    """
    topk, num_dense = reader.get("num_experts_per_tok"), reader.get("first_k_dense_replace")
    has_experts = [layer >= num_dense for layer in range(reader.get("num_hidden_layers"))]
    reader.only("scoring_func", "sigmoid")
    reader.only("topk_method", "noaux_tc")
    reader.only("moe_layer_freq", 1)
    reader.only("mlp_layer_types", None, ["sparse" if of_layer else "dense" for of_layer in has_experts])
    reader.only("norm_topk_prob", topk > 1)  # Megatron normalises sigmoid scores exactly when there are several
    expert_size = reader.get("moe_intermediate_size")
    return {
        "num_moe_experts": reader.get("n_routed_experts"),
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
        **_expert_groups(reader, topk),
    }


def _expert_groups(reader: ConfigReader, topk: int) -> dict[str, Any]:
    num_groups, kept_groups = reader.get("n_group", 1), reader.get("topk_group", 1)
    if num_groups == 1:
        return {}
    if topk // kept_groups != 2:
        raise SlimeError(
            f"'num_experts_per_tok: {topk}' with 'topk_group: {kept_groups}' is not supported",
            where="config.json",
            todo="Megatron ranks a group of experts by its best num_experts_per_tok // topk_group, the models by two.",
        )
    return {"moe_router_num_groups": num_groups, "moe_router_group_topk": kept_groups}


def mtp(reader: ConfigReader) -> dict[str, Any]:
    """One multi-token prediction layer (arXiv 2412.19437, section 2.2), or none; engines draft with one at most.

    With tied embeddings Megatron-core gives the last pipeline stage an output layer that nothing keeps in step.
    """
    num_layers = reader.only("num_nextn_predict_layers", 0, 1, None) or None
    if num_layers:
        reader.only("tie_word_embeddings", False)
    return {"mtp_num_layers": num_layers}


def rotary(reader: ConfigReader, *, default_percent: float) -> dict[str, Any]:
    """Rotary embeddings without scaling, as `GPTModel` keywords; both spellings of config.json.

    transformers 5 writes `rope_parameters`; before, `rope_theta` and `partial_rotary_factor` stood alone.
    """
    parameters, _, base = _rope_parameters(reader, "default")
    percent = reader.get("partial_rotary_factor", default_percent)
    return {
        "position_embedding_type": "rope",
        "rotary_percent": parameters.get("partial_rotary_factor", percent),
        "rotary_base": base,
    }


def _rope_parameters(reader: ConfigReader, *supported: str) -> tuple[Mapping[str, Any], str, float]:
    """Rotary settings, their kind (one of `supported`) and base."""
    written = reader.get("rope_parameters", None), reader.get("rope_scaling", None)
    parameters: Mapping[str, Any] = written[0] or written[1] or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in supported:
        raise SlimeError(
            f"'rope_type: {kind}' is not supported for this model family",
            where="config.json",
            todo=f"Supported: {', '.join(supported)}.",
        )
    if "rope_theta" not in parameters:
        return parameters, kind, reader.get("rope_theta")
    reader.get("rope_theta", None)  # some files say it twice
    return parameters, kind, parameters["rope_theta"]


def embeddings(reader: ConfigReader) -> dict[str, Any]:
    """Vocabulary (without padding), context length and tied embeddings, as `GPTModel` keywords."""
    return {
        "vocab_size": reader.get("vocab_size"),
        "max_sequence_length": reader.get("max_position_embeddings"),
        "share_embeddings_and_output_weights": reader.get("tie_word_embeddings", False),
    }
