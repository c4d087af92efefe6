"""Megatron's config objects as slime makes them, and contradictions that are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatron_core_portable import apply_fixups
from slime import plugins
from slime.config.schema import TrainConfig
from slime.errors import SlimeError
from slime.layout import read_grid
from slime_megatron.train import settings

from .one_rank import HF

FAMILY = HF | {"rms_norm_eps": 1e-5}


def config(**megatron: Any) -> Any:
    train = TrainConfig(megatron=megatron)
    return settings.transformer_config(train, plugins.load().models.create("glm4"), FAMILY, (), on_gpus=False)


def test_what_the_code_depends_on_is_set() -> None:
    made = config()
    assert made.calculate_per_token_loss
    assert made.variable_seq_lengths
    assert made.moe_token_dispatcher_type == "alltoall"
    assert made.params_dtype == torch.float32
    assert not made.sequence_parallel
    assert config(tensor_model_parallel_size=2).sequence_parallel


@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 1, 1), (4, 1, 4), (4, 2, 4), (4, 4, 1), (2, 8, 1)])
def test_experts_are_shared_as_the_plan_says_without_a_composed_config(tp: int, ep: int, etp: int) -> None:
    sizes = {"tensor_model_parallel_size": tp, "expert_model_parallel_size": ep}
    assert config(num_moe_experts=8, **sizes).expert_tensor_parallel_size == etp
    assert read_grid(8, sizes).etp == etp


def test_the_user_overrules_the_family_and_names_dtypes() -> None:
    made = config(layernorm_epsilon=1e-6, bf16=True, params_dtype="bf16")
    assert made.layernorm_epsilon == 1e-6
    assert made.params_dtype == made.pipeline_dtype == torch.bfloat16


def test_gpus_train_in_bf16() -> None:
    train = TrainConfig()
    made = settings.transformer_config(train, plugins.load().models.create("glm4"), FAMILY, (), on_gpus=True)
    assert made.bf16
    assert made.params_dtype == torch.bfloat16
    assert settings.optimizer_config(train, on_gpus=True).bf16


@pytest.mark.parametrize(
    ("megatron", "message"),
    [
        ({"tensor_model_parallel_size": 2, "sequence_parallel": False}, "sequence_parallel=false"),
        (
            {"num_moe_experts": 8, "tensor_model_parallel_size": 4, "expert_model_parallel_size": 2}
            | {"expert_tensor_parallel_size": 1},
            "with another expert_tensor_parallel_size is not supported",
        ),
        ({"hiden_size": 64}, "no field 'hiden_size'. Did you mean 'hidden_size'?"),
        ({"recompute_granularity": "most"}, 'most must be "full"'),
    ],
)
def test_contradictions_are_refused(megatron: dict[str, Any], message: str) -> None:
    with pytest.raises(SlimeError, match=r"^train\.megatron: ") as refused:
        config(**megatron)
    assert message in str(refused.value)


def test_adam_on_the_cpu_brings_the_master_weights_along() -> None:
    apply_fixups()
    train = TrainConfig(optimizer={"optimizer_cpu_offload": True})
    made = settings.optimizer_config(train, on_gpus=True)
    assert made.use_precision_aware_optimizer
    assert made.optimizer_offload_fraction == 1.0
