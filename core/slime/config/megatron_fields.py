"""The fields of Megatron-core's dataclasses that a run may set, what each does here, and why others are refused.

Megatron-core has some three hundred; many do nothing in slime's layers and trainer, and a key that does nothing is
refused. Each accepted field is shown to change something by the tests of slime-megatron (`test_fields.py`), or
says why it changes no number. Fields that a model's bridge gives say what the model is: they are config.json's
(`slime.compose.check`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any


@dataclass(frozen=True)
class Accepted:
    """One field that a run may set.

    Attributes:
        effect: what it changes.
        numbers: whether it changes results, memory or processes; if not, `effect` says what it is good for.
        least, above, below: bounds of a number: at least, above, below.
        only: its values; of a list, those of its items.
        needs: conditions, separated by blanks, without which it does nothing or does not work: a key that is set,
            "key=value", "key!=value" or "key>number". One without a section is of `train.megatron`, or of the model.
        neutral: the value, besides null, false and 0, that asks for nothing.
    """

    effect: str
    numbers: bool = True
    least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf
    only: tuple[Any, ...] = ()
    needs: str = ""
    neutral: Any = None

    def fault(self, value: Any) -> str:
        """Why the value is out of range, empty if it is not. Its type is right."""
        if value is None:
            return ""
        if self.only:
            items = value if isinstance(value, list) else [value]
            wrong = [item for item in items if item not in self.only]
            return f"must be {self.range_in_words()}, got {_in_yaml(wrong[0])}" if wrong else ""
        if isinstance(value, bool | str):
            return ""
        if isinstance(value, list):
            return f"must be one number, got {value}" if self.range_in_words() else ""
        good = math.isfinite(value) and self.least <= value < self.below and value > self.above
        return "" if good else f"must be {self.range_in_words() or 'finite'}, got {value}"

    def asks(self, value: Any) -> bool:
        """Whether the value wants something done."""
        return bool(value) and value != self.neutral

    def range_in_words(self) -> str:
        """Values or bounds, empty if its type says all."""
        if self.only:
            return " or ".join(map(_in_yaml, self.only))
        bounds = {"at least": self.least, "above": self.above, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))


def _in_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_SIZE: dict[str, Any] = {"least": 1, "below": 1e5}
_STAGES: dict[str, Any] = {**_SIZE, "needs": "pipeline_model_parallel_size>1"}
_EXPERTS = "num_moe_experts"
_FULL = "recompute_granularity=full"
_FLEX = "moe_token_dispatcher_type=flex"
_OFFLOAD = "train.optimizer.optimizer_cpu_offload"
_OVERLAP = "train.ddp.overlap_grad_reduce"
_FIXED: dict[str, Any] = {"numbers": False}

ACCEPTED: Mapping[str, Mapping[str, Accepted]] = {
    "train.megatron": {
        "tensor_model_parallel_size": Accepted("ranks that share every layer", **_SIZE),
        "pipeline_model_parallel_size": Accepted("ranks that have the layers one after another", **_SIZE, neutral=1),
        "virtual_pipeline_model_parallel_size": Accepted("parts of the model a pipeline rank has", **_SIZE),
        "context_parallel_size": Accepted("ranks that share every sequence", **_SIZE),
        "expert_model_parallel_size": Accepted("ranks that share the experts of a layer", **_SIZE),
        "expert_tensor_parallel_size": Accepted("ranks that share every expert", **_SIZE, needs=_EXPERTS, neutral=1),
        "num_layers_in_first_pipeline_stage": Accepted("layers of the first stage", **_STAGES),
        "num_layers_in_last_pipeline_stage": Accepted("layers of the last stage", **_STAGES),
        "pipeline_model_parallel_layout": Accepted("layers of every stage", needs=_STAGES["needs"]),
        "account_for_embedding_in_pipeline_split": Accepted("a layer less on the first stage", needs=_STAGES["needs"]),
        "account_for_loss_in_pipeline_split": Accepted("a layer less on the last stage", needs=_STAGES["needs"]),
        "sequence_parallel": Accepted("comes with tensor parallelism", **_FIXED, needs="tensor_model_parallel_size>1"),
        "cp_comm_type": Accepted("comes with context parallelism", **_FIXED, needs="context_parallel_size>1"),
        "overlap_p2p_comm": Accepted(
            "comes with several parts a pipeline rank", **_FIXED, needs="virtual_pipeline_model_parallel_size>1"
        ),
        "batch_p2p_comm": Accepted("comes with several parts a pipeline rank", **_FIXED),
        "bf16": Accepted("weights and activations in bf16, masters and moments in fp32; false: all in fp32"),
        "disable_bf16_reduced_precision_matmul": Accepted(
            "sums of bf16 products stay in fp32 where cuBLAS splits them", needs="cluster.device=cuda bf16"
        ),
        "recompute_granularity": Accepted("full: whole layers are computed again; selective: parts of them"),
        "recompute_method": Accepted("which layers: uniform, all in groups; block, the first of a stage", needs=_FULL),
        "recompute_num_layers": Accepted("layers of a group (uniform) or of a stage (block)", **_SIZE, needs=_FULL),
        "recompute_modules": Accepted(
            "the parts that are computed again",
            only=("core_attn", "mla_up_proj", "mlp", "moe", "shared_experts"),
            needs="recompute_granularity=selective",
        ),
        "moe_token_dispatcher_type": Accepted(
            "speed: flex sends tokens to experts by DeepEP", **_FIXED, needs=_EXPERTS, neutral="alltoall"
        ),
        "moe_flex_dispatcher_backend": Accepted("speed", **_FIXED, only=("deepep",), needs=_FLEX),
        "moe_deepep_num_sms": Accepted("speed: the multiprocessors DeepEP takes", **_FIXED, **_SIZE, needs=_FLEX),
        "moe_grouped_gemm": Accepted(
            "one product for all experts of a rank, or one for each", needs=f"{_EXPERTS} bf16"
        ),
        "moe_router_load_balancing_type": Accepted(
            "aux_loss: routers learn balance, by `moe_aux_loss_coeff`",
            only=("none", "aux_loss"),
            needs=f"{_EXPERTS} moe_aux_loss_coeff",
            neutral="none",
        ),
        "moe_aux_loss_coeff": Accepted(
            "weight of the load balancing loss (Switch, per micro-batch)",
            least=0,
            needs=f"{_EXPERTS} moe_router_load_balancing_type=aux_loss",
        ),
        "moe_z_loss_coeff": Accepted("weight of the routers' z-loss (ST-MoE)", least=0, needs=_EXPERTS),
        "moe_router_bias_update_rate": Accepted(
            "how far a step moves the correction bias of each expert", least=0, needs="moe_router_enable_expert_bias"
        ),
        "dsa_indexer_loss_coeff": Accepted(
            "weight of the indexers' loss, which alone trains them", least=0, needs="dsa_indexer_layers"
        ),
        "init_method_std": Accepted("standard deviation of random weights", above=0, needs="model.init=random"),
    },
    "train.optimizer": {
        "optimizer": Accepted("checkpoints, stages and offloading are written for Adam", **_FIXED, only=("adam",)),
        "use_distributed_optimizer": Accepted("checkpoints and offloading are written for it", **_FIXED, only=(True,)),
        "lr": Accepted("peak learning rate, 1e-6 unless set", above=0, below=1),
        "min_lr": Accepted("learning rate at the end of the decay", least=0, needs="train.lr_decay!=constant"),
        "weight_decay": Accepted("decoupled (AdamW), 0 unless set; norms and biases have none", least=0),
        "adam_beta1": Accepted("decay of the first moments", least=0, below=1),
        "adam_beta2": Accepted("decay of the second moments", least=0, below=1),
        "adam_eps": Accepted("is added to the root of the second moments", above=0),
        "clip_grad": Accepted("norm that all gradients together are scaled down to; 0: never", least=0),
        "optimizer_cpu_offload": Accepted(
            "moments and master weights in host memory, where Adam runs",
            needs="cluster.device=cuda bf16 train.optimizer.use_precision_aware_optimizer!=false",
        ),
        "use_precision_aware_optimizer": Accepted("comes with `optimizer_cpu_offload`", **_FIXED, needs=_OFFLOAD),
        "optimizer_offload_fraction": Accepted("all of it or nothing", **_FIXED, only=(1.0,), needs=_OFFLOAD),
        "overlap_cpu_optimizer_d2h_h2d": Accepted("speed: Adam runs while gradients arrive", **_FIXED, needs=_OFFLOAD),
    },
    "train.ddp": {
        "use_distributed_optimizer": Accepted("checkpoints and offloading are written for it", **_FIXED, only=(True,)),
        "grad_reduce_in_fp32": Accepted("gradients are summed in fp32", **_FIXED, only=(True,)),
        "overlap_grad_reduce": Accepted("speed: gradients are reduced during the last backward pass", **_FIXED),
        "bucket_size": Accepted("speed: parameters that are reduced at once", **_FIXED, least=1, needs=_OVERLAP),
        "pad_buckets_for_high_nccl_busbw": Accepted("speed: buckets in sizes that NCCL likes", **_FIXED),
    },
}
"""Section -> field -> what it does. `_FIXED` ones change no number: they name what slime does anyway, or are speed."""

OF_THE_MODEL: Mapping[str, str] = {
    "num_moe_experts": "a model with experts",
    "moe_router_enable_expert_bias": "a model whose routers have a correction bias",
    "dsa_indexer_layers": "a model with sparse attention",
}
"""What accepted fields need of the model, in words."""

_INSTALLED = "finalize_model_grads_func grad_scale_func no_sync_func grad_sync_func param_sync_func timers"
SET_BY_SLIME: Mapping[str, Mapping[str, str]] = {
    "train.megatron": {
        "variable_seq_lengths": "sequences are always packed",
        "calculate_per_token_loss": "losses carry their denominators",
        "mtp_num_layers": "it comes from config.json, and the layer learns with `train.mtp_loss_scale`",
        "mtp_loss_scaling_factor": "it is `train.mtp_loss_scale`",
        "params_dtype": "it follows `train.megatron.bf16`",
        "pipeline_dtype": "it follows `train.megatron.bf16`",
        "use_cpu_initialization": "it follows `cluster.device`",
        "perform_initialization": "Megatron-core marks what is tensor parallel while it initialises",
        "gradient_accumulation_fusion": "on GPUs weight gradients go straight into fp32 buffers",
        **dict.fromkeys(_INSTALLED.split(), "the trainer installs it"),
    },
    "train.optimizer": {
        "bf16": "it follows `train.megatron.bf16`",
        "params_dtype": "it follows `train.megatron.bf16`",
    },
    "train.ddp": {},
}
"""Fields that slime fills in itself, with where their value comes from."""

UNSUPPORTED: Mapping[str, str] = {
    "slime's layers do not compute it": """
        window_size window_attn_skip_freq softmax_type qk_l2_norm layernorm_zero_centered_gamma attention_output_gate
        qk_clip* log_max_attention_logit apply_query_key_layer_scaling apply_residual_connection_post_layernorm
        fp32_residual_connection experimental_attention_variant linear_* mamba_* is_hybrid_model mrope_section
        heterogeneous_block_specs moe_latent_size""",
    "slime chooses its kernels itself": """
        attention_backend attention_softmax_in_fp32 masked_softmax_fusion persist_layer_norm memory_efficient_layer_norm
        bias_activation_fusion bias_dropout_fusion apply_rope_fusion fused_single_qkv_rope transformer_impl
        use_fused_weighted_squared_relu use_te_activation_func moe_use_legacy_grouped_gemm batch_invariant_mode
        cross_entropy_*""",
    "it needs Transformer Engine": """
        fp8* fp4* tp_comm_* tp_only_amax_red cpu_offloading* *cuda_graph* moe_permute_fusion moe_router_fusion
        moe_router_padding_for_* use_te_rng_tracker use_kitchen* kitchen_* quant_recipe symmetric_ar_type
        first_last_layers_bf16 num_layers_at_*_in_bf16 main_*_dtype exp_avg*_dtype store_param_remainders
        reuse_grad_buf_for_mxfp8_param_ag keep_fp8_transpose_cache""",
    "engines route every token, and without noise": """
        moe_expert_capacity_factor moe_pad_expert_input_to_capacity moe_token_drop* moe_input_jitter_eps
        moe_router_force_load_balancing""",
    "it would train with fp16": "fp16 loss_scale initial_loss_scale min_loss_scale loss_scale_window hysteresis",
    "it would round what slime keeps in fp32": "enable_autocast autocast_dtype",
    "every part of the model has the learning rate of its stage": "decoupled_lr decoupled_min_lr",
    "slime's optimizer is AdamW": "decoupled_weight_decay sgd_momentum muon_*",
    "activations stay on the device; recomputation saves memory": """
        fine_grained_activation_offloading offload_modules min_offloaded_tensor_size""",
    "training does not generate": "inference_* flash_decode cache_mla_latents mlp_chunks_for_prefill *inference*",
    "parameters would still be on their way when they are published": """
        overlap_param_gather overlap_param_gather_with_optimizer_step align_param_gather""",
    "slime checks every gradient and names the rank": "check_for_nan_in_grad check_for_large_grads",
    "slime is not built on Megatron-FSDP": "*fsdp* *sharding_strategy* suggested_communication_unit_size nccl_ub",
}
"""Why fields, given by patterns, are refused. What stands nowhere is refused without a reason."""


def reason_against(field: str) -> str:
    """Why a field that is not accepted is refused; empty if nobody wrote it down."""
    refused = ((pattern, reason) for reason, patterns in UNSUPPORTED.items() for pattern in patterns.split())
    return next((reason for pattern, reason in refused if fnmatch(field, pattern)), "")
