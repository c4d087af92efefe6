"""Bridges of decoders that are made of this package's blocks: a family states its keywords and its rules.

No torch until layers are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import slime_megatron.latent_attention as mla
import slime_megatron.mixture_of_experts as moe
import slime_megatron.multi_token_prediction as mtp
import slime_megatron.sparse_attention as dsa
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import WeightMapping
from slime.models.published import Published
from slime.models.rules import Rules
from slime.models.traits import Traits
from slime_megatron.transformer import decoder, embeddings, gqa, mlp, rotary

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig


class Decoder(ABC):
    """A `slime.models.bridge.PublishedBridge` of pre-norm layers with grouped-query or latent attention, and an MLP or
    experts: as its keywords say."""

    family: str
    published: Published

    @abstractmethod
    def read(self, reader: ConfigReader) -> tuple[dict[str, Any], dict[str, Any]]:
        """Keywords of Megatron's `TransformerConfig`, and of its `GPTModel`; what is left unread is refused."""

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        return self._read(hf)[0]

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        return self._read(hf)[1]

    def _read(self, hf: HfConfig) -> tuple[dict[str, Any], dict[str, Any]]:
        reader = ConfigReader(hf, self.published)
        found = self.read(reader)
        reader.finish()
        return found

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_megatron.transformer.specs import decoder_block

        return decoder_block(config, vp_stage, partial(self.layer, config))

    def layer(self, config: TransformerConfig, is_moe: bool) -> ModuleSpec:
        """A layer, dense or with experts."""
        from slime_megatron.mixture_of_experts.module import dense_or_moe_layer

        return dense_or_moe_layer(config, is_moe, attention=self.attention(config))

    def attention(self, config: TransformerConfig) -> ModuleSpec:
        """The attention of a layer."""
        from slime_megatron.latent_attention.module import mla as latent
        from slime_megatron.transformer.specs import gqa

        return latent(config) if config.multi_latent_attention else gqa(config)

    @abstractmethod
    def attention_rules(self, hf: HfConfig) -> Rules:
        """Weights of the attention, of a complete config.json."""

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = self.published.complete(hf)
        return WeightMapping(decoder.rules(hf, self.attention_rules(hf), mlp.rules()), hf["num_hidden_layers"])


class ExpertDecoder(Decoder):
    """A decoder with dense layers first, then experts with sigmoid routing, and a prediction layer behind the last, if
    there is one."""

    def attention_rules(self, hf: HfConfig) -> Rules:
        return mla.rules(q_lora=hf["q_lora_rank"] is not None)

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        hf = self.published.complete(hf)
        return mtp.moe_mapping(hf, self.attention_rules(hf))

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (*mtp.traits(hf, self.mtp_spec), *moe.traits(self.transformer_config(hf)))

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        """The prediction layer, with experts."""
        from slime_megatron.multi_token_prediction.module import mtp_layer

        return mtp_layer(config, self.layer(config, True))


class SparseDecoder(ExpertDecoder):
    """An `ExpertDecoder` whose latent attention is to the keys that an indexer chooses."""

    def attention(self, config: TransformerConfig) -> ModuleSpec:
        from slime_megatron.sparse_attention.module import sparse_latent_attention

        return sparse_latent_attention()

    def attention_rules(self, hf: HfConfig) -> Rules:
        return dsa.attention_rules(dsa.choosing_layers(hf))

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        from slime_megatron.sparse_attention.module import check_stage

        check_stage(config, vp_stage)
        return super().block_spec(config, vp_stage)

    def traits(self, hf: HfConfig) -> tuple[Traits, ...]:
        return (dsa.TRAITS, *super().traits(hf))

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        return dsa.problems(hf, megatron)


def dense(reader: ConfigReader, *, bias: bool = False, qk_norm: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """`Decoder.read` of grouped-query attention whose heads are turned as a whole, on their two halves."""
    attention = gqa.keywords(reader, bias=bias, qk_norm=qk_norm, rotary_interleaved=False)
    turning = rotary.keywords(reader, default_percent=1.0, partial=False)
    return {**decoder.keywords(reader), **attention}, {**turning, **embeddings.keywords(reader)}


def without_windows(reader: ConfigReader) -> None:
    """Refuse sliding windows where a file says that some layers have them; the fields of one stand in every file."""
    reader.only("use_sliding_window", False)
    reader.only("layer_types", None, ["full_attention"] * reader.get("num_hidden_layers"))
    reader.skip("max_window_layers", "sliding_window")
