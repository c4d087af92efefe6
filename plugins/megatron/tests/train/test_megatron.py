"""What the trainer makes of a model, as far as no process group is needed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.models.traits import WORTH_SHARING, Traits
from slime_megatron.train.megatron import Model, sharing_of


class OtherRouter(Router):  # type: ignore[misc]
    """One that knows no shared prompts, of a family that states no traits."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)

    def routing(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    forward = routing


def model(*traits: Traits, modules: Sequence[Any] = (), **fields: Any) -> Model:
    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, use_cpu_initialization=True, **fields
    )
    return Model([], list(modules), config, traits)


def cfg(wanted: bool | None, device: Device = Device.cpu) -> SlimeConfig:
    found = SlimeConfig()
    found.train.share_prompts, found.cluster.device = wanted, device
    return found


def test_prompts_are_shared_unless_told_otherwise_on_gpus_where_it_pays() -> None:
    assert sharing_of(cfg(None), model()) == 1
    assert sharing_of(cfg(False), model()) == sharing_of(cfg(False, Device.cuda), model()) == 0
    assert sharing_of(cfg(None, Device.cuda), model()) == WORTH_SHARING
    assert sharing_of(cfg(True, Device.cuda), model()) == 1


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        (model(context_parallel_size=2), "context parallelism"),
        (model(modules=[OtherRouter()]), "OtherRouter"),
        (model(Traits("a block that counts", learns_by="train.mtp_loss_scale")), "a block that counts"),
    ],
)
def test_a_model_that_needs_whole_sequences_gets_them(whole: Model, named: str) -> None:
    assert sharing_of(cfg(None), whole) == 0
    with pytest.raises(SlimeError, match=named) as refused:
        sharing_of(cfg(True), whole)
    assert refused.value.where == "train.share_prompts"
