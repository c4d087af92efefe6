"""What the trainer makes of a model, as far as no process group is needed."""

from typing import Any

import pytest
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.models.traits import Traits
from slime_plugin_megatron.megatron import Model, shares_prompts


def model(*traits: Traits, **fields: Any) -> Model:
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True, **fields
    )
    return Model([], [], config, traits)


def cfg(wanted: bool | None, device: Device = Device.cpu) -> SlimeConfig:
    found = SlimeConfig()
    found.train.share_prompts, found.cluster.device = wanted, device
    return found


def test_prompts_are_shared_on_a_cpu_unless_told_otherwise() -> None:
    assert shares_prompts(cfg(None), model())
    assert not shares_prompts(cfg(False), model())
    assert not shares_prompts(cfg(None, Device.cuda), model())
    assert shares_prompts(cfg(True, Device.cuda), model())


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        (model(context_parallel_size=2), "context parallelism"),
        (model(num_moe_experts=4, add_bias_linear=False), "a mixture of experts"),
        (model(Traits("a block that counts", learns_by="train.mtp_loss_scale")), "a block that counts"),
    ],
)
def test_a_model_that_needs_whole_sequences_gets_them(whole: Model, named: str) -> None:
    assert not shares_prompts(cfg(None), whole)
    with pytest.raises(SlimeError, match=named) as refused:
        shares_prompts(cfg(True), whole)
    assert refused.value.where == "train.share_prompts"
