"""What a building block asks of the code around the model: trainer, optimizer, packing. No torch.

Bridges state it (`slime.contracts.TraitsBridge`), so that nothing outside `slime.models` knows any block by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from slime.contracts import HfConfig, ModelBridge, TraitsBridge

if TYPE_CHECKING:
    import numpy as np
    from megatron.core.transformer.transformer_config import TransformerConfig
    from torch import Tensor

    from slime.config.schema import SlimeConfig
    from slime.models.packed.attention import PackedSequences
    from slime.types import MicroBatch


class ExtraLoss(Protocol):
    """A loss beside the policy's, made of one more row of the model's scores. Shape letter: t tokens of this rank."""

    name: str
    """Of the metric: the loss in nats, without its weight."""

    def prepare(
        self,
        packed: PackedSequences,
        micro: MicroBatch,
        local: Callable[[np.ndarray], Tensor],
        num_step_tokens: int,
    ) -> None:
        """Give `packed` what the model reads for it, before a training pass.

        Args:
            local: from one number a token of the whole micro-batch to this rank's [t].
            num_step_tokens: of the optimizer step, by which gradients are divided in the end.
        """

    def of(self, row: Tensor, packed: PackedSequences) -> Tensor:
        """Scalar, weighted as the policy's loss is; row: [t], with gradient."""


@dataclass(frozen=True)
class Traits:
    """Of one building block.

    Attributes:
        learns_by: the key of the config that lets the block learn, by a value that is not 0. Without it the block is
            there, but frozen.
        while_frozen: keywords of Megatron's config that are other ones then.
        config_class: gives the class of Megatron's config that the block's keywords belong to.
        policy_kwargs: from the bridge and Megatron's config to keywords of `slime.models.policy.PolicyModel`.
        contiguous: a context-parallel rank gets one run of a sequence. Otherwise it gets an early and a late one, as
            queries cost the more the later they stand.
        refused: fields of Megatron's config that may not be set, and what they would mean.
        extra_loss: gives the loss by which the block learns, weighted by the value of `learns_by`.
    """

    learns_by: str
    while_frozen: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    config_class: Callable[[], type] | None = None
    policy_kwargs: Callable[[ModelBridge, TransformerConfig], Mapping[str, Any]] | None = None
    contiguous: bool = False
    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    extra_loss: Callable[[], ExtraLoss] | None = None

    def coefficient(self, cfg: SlimeConfig) -> float:
        """The value of `learns_by`; 0 where it is not set."""
        return coefficient_of(cfg, self.learns_by)


def coefficient_of(cfg: SlimeConfig, key: str) -> float:
    """The value of such a key, also of one among Megatron's fields; 0 where it is not set."""
    from slime.config.keys import value_of  # omegaconf with it, which `slime --help` does without

    section, _, name = key.rpartition(".")
    values = value_of(cfg, section)
    value = values.get(name) if isinstance(values, Mapping) else getattr(values, name)
    return float(value or 0)


def traits_of(bridge: ModelBridge, hf: HfConfig) -> tuple[Traits, ...]:
    """What the bridge states of a model; nothing if its blocks ask for nothing."""
    return tuple(bridge.traits(hf)) if isinstance(bridge, TraitsBridge) else ()


def extra_losses(cfg: SlimeConfig, traits: Iterable[Traits]) -> list[tuple[ExtraLoss, float]]:
    """The extra losses of the blocks that learn, each with its coefficient, in the order of the rows of scores."""
    found = [(trait.extra_loss, trait.coefficient(cfg)) for trait in traits if trait.extra_loss]
    return [(make(), coefficient) for make, coefficient in found if coefficient]
