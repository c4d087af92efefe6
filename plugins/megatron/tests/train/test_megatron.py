"""What the trainer makes of a model, as far as no process group is needed."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.config.schema import TrainConfig
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


def shared(wanted: bool | None, model: Model, *, on_gpus: bool = False) -> float:
    return sharing_of(TrainConfig(share_prompts=wanted), model, on_gpus=on_gpus)


def test_prompts_are_shared_unless_told_otherwise_on_gpus_where_it_pays() -> None:
    assert shared(None, model()) == 1
    assert shared(False, model()) == shared(False, model(), on_gpus=True) == 0
    assert shared(None, model(), on_gpus=True) == WORTH_SHARING
    assert shared(True, model(), on_gpus=True) == 1


@pytest.mark.parametrize(
    ("whole", "named"),
    [
        (model(context_parallel_size=2), "context parallelism"),
        (model(modules=[OtherRouter()]), "OtherRouter"),
        (model(Traits("a block that counts", learns_by="train.mtp_loss_scale")), "a block that counts"),
    ],
)
def test_a_model_that_needs_whole_sequences_gets_them(whole: Model, named: str) -> None:
    assert shared(None, whole) == 0
    with pytest.raises(SlimeError, match=named) as refused:
        shared(True, whole)
    assert refused.value.where == "train.share_prompts"
