"""Megatron-core's own config objects for a run: what slime needs, under what the family and the user say.

Later ones win: slime's defaults, the model family's architecture, `train.megatron`. The few settings that slime's
code depends on are checked afterwards, so that a contradiction is an error and never silently overruled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from slime.compose.derive import required_megatron
from slime.config.schema import OPTIMIZER_DEFAULTS, TrainConfig
from slime.errors import SlimeError, did_you_mean
from slime.layout import default_etp, trains_experts
from slime.models.bridge import HfConfig, ModelBridge
from slime.models.traits import Traits

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_DTYPE_KEYS = {"params_dtype", "pipeline_dtype", "autocast_dtype", "main_grads_dtype", "main_params_dtype"} | {
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
}


def transformer_config(
    train: TrainConfig, bridge: ModelBridge, hf: HfConfig, traits: Sequence[Traits], *, on_gpus: bool
) -> TransformerConfig:
    """Megatron's TransformerConfig of this model in this layout: MLATransformerConfig for latent attention, or what a
    block of the model brings.

    Args:
        traits: of the model's blocks.

    Raises:
        SlimeError: Megatron-core refuses the combination, or it contradicts what slime's code depends on.
    """
    values = _defaults(train.megatron, on_gpus) | bridge.transformer_config(hf) | dict(train.megatron)
    for trait in traits:
        if not trait.coefficient(train):
            values |= trait.while_frozen
        if trait.recording and train.routing_replay:
            values |= trait.recording.megatron_fields
    if isinstance(activation := values.get("activation_func"), str):
        values["activation_func"] = getattr(F, activation)
    values.setdefault("use_te_activation_func", _is_swiglu(values))
    config = _construct(_kind(values, traits), values, "train.megatron")
    _check(config, traits)
    return config


def _kind(values: Mapping[str, Any], traits: Sequence[Traits]) -> type:
    for trait in traits:
        if trait.config_class is not None:
            return trait.config_class()
    kind: type = MLATransformerConfig if values.get("multi_latent_attention") else TransformerConfig
    return kind


def optimizer_config(train: TrainConfig, *, on_gpus: bool) -> OptimizerConfig:
    """Megatron's OptimizerConfig: distributed optimizer, `OPTIMIZER_DEFAULTS` unless `train.optimizer` says otherwise.

    With `optimizer_cpu_offload` moments and master weights lie in host memory, where Adam runs on them.
    """
    precision = _precision(train.megatron, on_gpus)
    defaults: dict[str, Any] = {**OPTIMIZER_DEFAULTS, "use_distributed_optimizer": True}
    if train.optimizer.get("optimizer_cpu_offload"):
        # Megatron-core's way to leave master weights to the inner optimizer; it has no other for this one.
        defaults |= {"use_precision_aware_optimizer": True, "optimizer_offload_fraction": 1.0}
    kept = {key: value for key, value in precision.items() if key in ("bf16", "params_dtype")}
    return _construct(OptimizerConfig, defaults | kept | dict(train.optimizer), "train.optimizer")


def ddp_config(ddp: Mapping[str, Any]) -> DistributedDataParallelConfig:
    """Megatron's DistributedDataParallelConfig: gradients are summed in fp32."""
    defaults = {"grad_reduce_in_fp32": True, "use_distributed_optimizer": True}
    return _construct(DistributedDataParallelConfig, defaults | dict(ddp), "train.ddp")


def _defaults(megatron: dict[str, Any], cuda: bool) -> dict[str, Any]:
    size = megatron.get
    defaults = {
        # Transformer Engine and apex are absent: slime's specs bring portable modules.
        "transformer_impl": "local",
        # Weight gradients go straight into DDP's fp32 buffers.
        "gradient_accumulation_fusion": cuda,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        # Sequences are packed, so every micro-batch has its own length.
        "variable_seq_lengths": True,
        "calculate_per_token_loss": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "expert_tensor_parallel_size": default_etp(
            size("tensor_model_parallel_size", 1), size("expert_model_parallel_size", 1)
        ),
        "use_cpu_initialization": not cuda,
        # Also before a checkpoint is loaded: Megatron marks parameters as tensor parallel while it initialises them.
        "perform_initialization": True,
        # The correction bias of a router belongs to the checkpoint; moving it is the user's choice.
        "moe_router_bias_update_rate": 0.0,
    }
    if size("virtual_pipeline_model_parallel_size"):
        defaults |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}  # otherwise the interleaved schedule deadlocks
    defaults |= required_megatron(megatron)
    precision = _precision(megatron, cuda)
    # One grouped matrix product for all experts of a rank; torch's takes bf16 alone.
    defaults["moe_grouped_gemm"] = cuda and precision["bf16"]
    return defaults | precision


def _is_swiglu(values: Mapping[str, Any]) -> bool:
    """Is the MLP's activation the one that slime's specs bring as a module, in Transformer Engine's slot for it?"""
    altered = ("bias_activation_fusion", "glu_linear_offset", "activation_func_clamp_value")
    is_gated_silu = values.get("activation_func") is F.silu and bool(values.get("gated_linear_unit"))
    return is_gated_silu and not any(values.get(name) for name in altered)


def _precision(megatron: Mapping[str, Any], cuda: bool) -> dict[str, Any]:
    bf16 = megatron.get("bf16", cuda)
    dtype = torch.bfloat16 if bf16 else torch.float32
    return {"bf16": bf16, "params_dtype": dtype, "pipeline_dtype": dtype}


def _construct(kind: type, values: Mapping[str, Any], where: str) -> Any:
    known = {field.name for field in dataclasses.fields(kind)}
    for name in values:
        if name not in known:
            raise SlimeError(f"{kind.__name__} has no field '{name}'", where=where, todo=did_you_mean(name, known))
    named = {name: _DTYPES.get(value, value) if name in _DTYPE_KEYS else value for name, value in values.items()}
    try:
        return kind(**named)
    except (ValueError, AssertionError) as error:
        raise SlimeError(str(error).rstrip("."), where=where, todo="Change the setting that this names.") from error


def _check(config: TransformerConfig, traits: Sequence[Traits]) -> None:
    """Refuse what Megatron-core accepts and computes wrongly, or what slime's own modules do not do."""
    tp, ep, etp = (
        config.tensor_model_parallel_size,
        config.expert_model_parallel_size,
        config.expert_tensor_parallel_size,
    )
    rules = {
        "sequence_parallel=false with tensor_model_parallel_size > 1": tp > 1 and not config.sequence_parallel,
        "expert_model_parallel_size below tensor_model_parallel_size with another expert_tensor_parallel_size": (
            bool(config.num_moe_experts) and not trains_experts(tp, ep, etp)
        ),
        **{what: getattr(config, name) for trait in traits for name, what in trait.refused.items()},
    }
    for setting, broken in rules.items():
        if broken:
            raise SlimeError(
                f"{setting} is not supported",
                where="train.megatron",
                todo="Leave the setting out: slime chooses the value that computes the right gradients.",
            )
