"""The multi-token prediction layer (arXiv 2412.19437, section 2.2): keywords, names, shapes and traits. No torch.

The layers are in `.module`, the loss in `.loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import slime_megatron.mixture_of_experts as moe
from slime.models.blocks import BuildingBlock
from slime.models.bridge import HfConfig
from slime.models.config_reader import ConfigReader
from slime.models.mapping import HF, MEGATRON, Rule, WeightMapping
from slime.models.rules import Rules
from slime.models.shapes import HIDDEN_NORM, Block, Cut, Shape
from slime.models.traits import Traits
from slime_megatron.transformer import decoder

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime_megatron.multi_token_prediction.loss import PredictionLoss
    from slime_megatron.multi_token_prediction.module import PredictionHead

LEARNS_BY = "train.mtp_loss_scale"


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """One multi-token prediction layer (arXiv 2412.19437, section 2.2), or none; engines draft with one at most.

    With tied embeddings Megatron-core gives the last pipeline stage an output layer that nothing keeps in step.
    """
    num_layers = reader.only("num_nextn_predict_layers", 0, 1, None) or None
    if num_layers:
        reader.only("tie_word_embeddings", False)
    return {"mtp_num_layers": num_layers}


_NAME = "mtp.layers.0."
_INNER = f"{_NAME}transformer_layer."
"""What Megatron's names begin with in the decoder layer inside."""

MODULES: Mapping[str, str] = MappingProxyType(
    {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "final_layernorm": "shared_head.norm"}
)
"""What it has beside its decoder layer: Megatron's names, and those of most checkpoints."""


def rules(layer: Rules, hf: str, *, modules: Mapping[str, str] = MODULES) -> Rules:
    """The multi-token prediction layer (arXiv 2412.19437, section 2.2), which most checkpoints number behind the last.

    Args:
        layer: blocks of the decoder layer inside it, such as `decoder.norm_rules() + gqa.rules(...) + moe.rules(...)`.
        hf: what its tensors' names begin with, such as `model.layers.61.`.
        modules: the checkpoint's names of the two input norms, the projection and the output norm, by Megatron's.
    """
    own = [Rule(f"{_NAME}{ours}.weight", (f"{hf}{theirs}.weight",)) for ours, theirs in modules.items()]
    every = (*BLOCK.state(*own), *(_moved(rule, hf) for rule in layer))
    return tuple(replace(rule, drafts=True, learns_by=(*rule.learns_by, LEARNS_BY)) for rule in every)


def _moved(rule: Rule, hf: str) -> Rule:
    """A decoder layer's rule as that of the layer inside the prediction layer."""
    megatron = _INNER + rule.megatron.removeprefix(MEGATRON)
    return replace(rule, megatron=megatron, hf=tuple(hf + name.removeprefix(HF) for name in rule.hf), layers=None)


def moe_mapping(hf: HfConfig, attention: Rules) -> WeightMapping:
    """`slime_megatron.mixture_of_experts.decoder_mapping`, and the prediction layer if the model has one.

    That layer has experts and is numbered behind the last one.

    Args:
        attention: of every layer; what it gives only some layers, the prediction layer has as well.
    """
    mapping = moe.decoder_mapping(hf, attention)
    if not hf.get("num_nextn_predict_layers"):
        return mapping
    prefix = HF.format(layer=mapping.num_layers)
    experts = moe.rules(shared_expert=hf["n_shared_experts"] > 0, correction_bias=True)
    layer = (*decoder.norm_rules(), *attention, *experts)
    return replace(mapping, rules=(*mapping.rules, *rules(layer, prefix)), copies=copies(prefix))


def copies(hf: str) -> dict[str, str]:
    """Copies of embeddings and output layer that many checkpoints keep in their prediction layer; engines skip them."""
    return {f"{hf}embed_tokens.weight": "model.embed_tokens.weight", f"{hf}shared_head.head.weight": "lm_head.weight"}


def traits(hf: HfConfig, spec: Callable[[TransformerConfig], ModuleSpec]) -> tuple[Traits, ...]:
    """Those of the layer, if the model has one.

    Args:
        spec: from Megatron's config to the layer, `module.mtp_layer` around the family's decoder layer.
    """

    def head(config: TransformerConfig) -> PredictionHead:
        from slime_megatron.multi_token_prediction.module import PredictionHead

        return PredictionHead(spec(config))

    found = Traits(
        name="a multi-token prediction layer",
        learns_by=LEARNS_BY,
        while_frozen={"mtp_num_layers": None},  # one that does not learn is not Megatron-core's
        head=head,
        refused={"mtp_standalone": "a multi-token prediction layer before the last pipeline stage"},
        extra_loss=_loss,
        reference="slime_testing.prediction:PredictionReference",
        shares_prompts=True,
    )
    return (found,) if hf.get("num_nextn_predict_layers") else ()


def _loss() -> PredictionLoss:
    from slime_megatron.multi_token_prediction.loss import PredictionLoss

    return PredictionLoss()


SHAPES = {
    **dict.fromkeys((f"{_NAME}{norm}.weight" for norm in ("enorm", "hnorm", "final_layernorm")), HIDDEN_NORM),
    f"{_NAME}eh_proj.weight": Shape(
        lambda m: (m["hidden_size"], 2 * m["hidden_size"]),
        Cut.tensor,
        Block.projection,
        in_bf16=True,
        engine_share=lambda numel, model, attention_tp: numel,
    ),
}
BLOCK = BuildingBlock(SHAPES)
