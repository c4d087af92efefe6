"""Settings by other names: of older versions, Megatron-LM's command line, verl, TRL and THUDM/slime.

The names of slime's own keys stand at their fields (`known_as` of `slime.config.declare.key`).
"""

from __future__ import annotations

from collections.abc import Mapping

from slime.config.keys import ANY_NAME, own_keys

_FOREIGN: Mapping[str, str] = {
    "train.megatron.num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "train.megatron.num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "train.megatron.virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "train.megatron.moe_token_dispatcher_type=flex": "moe_enable_deepep",
    "train.megatron.recompute_modules=[moe]": "moe_layer_recompute",
    "train.megatron.recompute_granularity=selective": "recompute_activations",
    "train.megatron.expert_tensor_parallel_size": "moe_extended_tp",
    "train.megatron.recompute_granularity=full": "gradient_checkpointing model.enable_gradient_checkpointing",
    "train.megatron.tensor_model_parallel_size": "actor.megatron.tensor_model_parallel_size megatron.tp",
    "train.megatron.pipeline_model_parallel_size": "actor.megatron.pipeline_model_parallel_size megatron.pp",
    "train.megatron.context_parallel_size": "actor.megatron.context_parallel_size megatron.cp",
    "train.megatron.expert_model_parallel_size": "actor.megatron.expert_model_parallel_size megatron.ep",
    "train.ddp.grad_reduce_in_fp32": "accumulate_allreduce_grads_in_fp32",
    "train.optimizer.lr": "actor.optim.lr learning_rate",
    "train.optimizer.clip_grad": "actor.grad_clip max_grad_norm",
    "train.optimizer.adam_beta1=<first> train.optimizer.adam_beta2=<second>": "betas actor.optim.betas",
    "rollout.prompts_per_step=<groups> sft.batch_size=<demonstrations>": "batch_size per_device_train_batch_size",
    "rollout.sglang.dsa_prefill_backend": "nsa_prefill_backend",
    "rollout.sglang.dsa_decode_backend": "nsa_decode_backend",
    "rollout.sglang.cuda_graph_max_bs_decode": "cuda_graph_max_bs",
    "rollout.sglang.cuda_graph_bs_decode": "cuda_graph_bs",
    "rollout.sglang.moe_a2a_backend=deepep": "enable_deepep_moe",
    "rollout.sglang.ep_size": "enable_ep_moe",
    "rollout.sglang.tp_size": (
        "rollout.tensor_model_parallel_size vllm_tensor_parallel_size rollout_num_gpus_per_engine"
    ),
    "rollout.sglang.mem_fraction_static": "rollout.gpu_memory_utilization vllm_gpu_memory_utilization",
    "algo=opd": "distillation.enabled use_opd",
    "rollout.surplus=continue": "partial_rollout",
    "filter=dynamic-sampling": "algorithm.filter_groups",
    "filter.path=<FILE.py:FUNCTION>": "dynamic_sampling_filter_path",
    "buffer.path=<FILE.py:FUNCTION>": "buffer_filter_path",
    "reward=reward-model": "reward_model.enable reward_model.model.path reward_model_path",
    "reward.path=<FILE.py:FUNCTION>": "custom_reward_function.path custom_rm_path",
    "reward.parts=<name: weight>": "reward_weights",
    "reward=<name>": "reward_funcs rm_type group_rm",
    "observe.trackers.wandb=true": "wandb",
    "slime push": "push_to_hub",
    "slime samples": "trainer.log_val_generations log_completions",
}
"""What is set instead, where that is no key of slime's own -> names, separated by blanks. A value stands behind `=`."""

FROM_CONFIG_JSON: Mapping[str, str] = {"rotary_base": "rope_theta"}
"""What other programs are told of a model -> the field of config.json that is read."""


def other_names() -> dict[str, str]:
    own = {key.name.replace(ANY_NAME, "default"): key.known_as for key in own_keys().values()}
    return {name: today for today, names in [*_FOREIGN.items(), *own.items()] for name in names.split()}


def renamed(name: str) -> str | None:
    """Today's key for another name, however a command line writes it: `--num-rollout`, `sglang_tp_size`."""
    return other_names().get(name.strip("-").replace("-", "_").removeprefix("actor_rollout_ref."))
