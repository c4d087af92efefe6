"""What a plugin of a model family implements: a bridge, and more where the family has more. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime.models.mapping import WeightMapping
    from slime.models.published import Published
    from slime.models.traits import Traits

HfConfig = Mapping[str, Any]
"""The parsed `config.json` of a Hugging Face checkpoint folder."""


@runtime_checkable
class ModelBridge(Protocol):
    """One model family: from its HF config to Megatron-core and back.

    `transformer_config` and `model_kwargs` return plain values and must not import torch: `slime plan` calls them.
    """

    family: str
    """The HF `model_type` this bridge serves."""

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        """Keywords of Megatron's `TransformerConfig` (or `MLATransformerConfig` when `multi_latent_attention`).

        Architecture only: sizes, norms, rotary, router. Parallelism and precision are the user's (`train.megatron`).
        """

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        """Keywords of Megatron's `GPTModel` beside the config: rotary_percent, rotary_base, tied embeddings."""

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        """Layer specs of this pipeline stage, assembled of building blocks."""

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        """The declarative HF <-> Megatron table."""


@runtime_checkable
class PublishedBridge(ModelBridge, Protocol):
    """A family that says what its published class reads of config.json, as all of slime's do."""

    published: Published


@runtime_checkable
class TraitsBridge(ModelBridge, Protocol):
    """A family with building blocks that ask something of the code around the model, such as a loss of their own."""

    def traits(self, hf: HfConfig) -> Sequence[Traits]:
        """The traits of the blocks that this model has; must not import torch."""


@runtime_checkable
class PlanBridge(ModelBridge, Protocol):
    """A family with rules of its own for parallel layouts; those of all families are in `slime.compose.rules`."""

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        """The rules that this layout breaks, a sentence each. Asked of layouts that break none of the common ones."""


@runtime_checkable
class EngineBridge(ModelBridge, Protocol):
    """A family whose model in SGLang lacks something; what all models need is in `slime.compose.engine_rules`."""

    def engine_problems(self, hf: HfConfig, sglang: Mapping[str, Any]) -> Sequence[str]:
        """What an engine group's fields of `ServerArgs` ask of the model that it does not do, a sentence each."""


@runtime_checkable
class HasModel(Protocol):
    """An objective (`slime.objective.Objective`) that trains another model than one of next tokens: a family's layers
    with another output, which a run exports and no engine is given. Its `loss` reads what that model returns."""

    def model(self) -> type:
        """A `slime_megatron.train.model.policy.PolicyModel`. May import torch."""

    def mapping(self, mapping: WeightMapping) -> WeightMapping:
        """The family's, with the other output."""

    def exported(self, hf: HfConfig) -> HfConfig:
        """config.json of the export, of that of the family's model."""


def completed(bridge: ModelBridge, hf: HfConfig, *, for_engines: bool = False) -> HfConfig:
    """config.json with the published class's defaults, where the family states them; engines need its class."""
    return bridge.published.complete(hf, for_engines=for_engines) if isinstance(bridge, PublishedBridge) else hf


def traits_of(bridge: ModelBridge, hf: HfConfig) -> tuple[Traits, ...]:
    """What the bridge states of a model; nothing if its blocks ask for nothing."""
    return tuple(bridge.traits(hf)) if isinstance(bridge, TraitsBridge) else ()
