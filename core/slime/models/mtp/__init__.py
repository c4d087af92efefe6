"""The multi-token prediction layer (arXiv 2412.19437, section 2.2): keywords, names, shapes and traits. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slime.contracts import HfConfig, ModelBridge, MtpBridge
from slime.models.config_reader import ConfigReader
from slime.models.rules import HF, MEGATRON, Rules
from slime.models.shapes import HIDDEN_NORM, Block, Cut, Shape
from slime.models.traits import Traits
from slime.weights.megatron.mapping import Rule

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime.models.mtp.loss import PredictionLoss


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """One multi-token prediction layer (arXiv 2412.19437, section 2.2), or none; engines draft with one at most.

    With tied embeddings Megatron-core gives the last pipeline stage an output layer that nothing keeps in step.
    """
    num_layers = reader.only("num_nextn_predict_layers", 0, 1, None) or None
    if num_layers:
        reader.only("tie_word_embeddings", False)
    return {"mtp_num_layers": num_layers}


_NAME = "mtp.layers.0."
INNER = f"{_NAME}transformer_layer."
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
    every = (*own, *(_moved(rule, hf) for rule in layer))
    return tuple(replace(rule, drafts=True, learns_by=(*rule.learns_by, _TRAITS.learns_by)) for rule in every)


def _moved(rule: Rule, hf: str) -> Rule:
    """A decoder layer's rule as that of the layer inside the prediction layer."""
    megatron = INNER + rule.megatron.removeprefix(MEGATRON)
    return replace(rule, megatron=megatron, hf=tuple(hf + name.removeprefix(HF) for name in rule.hf), layers=None)


def copies(hf: str) -> dict[str, str]:
    """Copies of embeddings and output layer that many checkpoints keep in their prediction layer; engines skip them."""
    return {f"{hf}embed_tokens.weight": "model.embed_tokens.weight", f"{hf}shared_head.head.weight": "lm_head.weight"}


def traits(hf: HfConfig) -> tuple[Traits, ...]:
    """Those of the layer, if the model has one."""
    return (_TRAITS,) if hf.get("num_nextn_predict_layers") else ()


def _policy_kwargs(bridge: ModelBridge, config: TransformerConfig) -> dict[str, Any]:
    assert isinstance(bridge, MtpBridge), "a family with a prediction layer has an mtp_spec"
    return {"mtp_spec": bridge.mtp_spec(config)}


def _loss() -> PredictionLoss:
    from slime.models.mtp.loss import PredictionLoss

    return PredictionLoss()


_TRAITS = Traits(
    learns_by="train.mtp_loss_scale",
    while_frozen={"mtp_num_layers": None},  # one that does not learn is not Megatron-core's
    policy_kwargs=_policy_kwargs,
    refused={"mtp_standalone": "a multi-token prediction layer before the last pipeline stage"},
    extra_loss=_loss,
)

SHAPES = {
    **dict.fromkeys((f"{_NAME}{norm}.weight" for norm in ("enorm", "hnorm", "final_layernorm")), HIDDEN_NORM),
    f"{_NAME}eh_proj.weight": Shape(lambda m: (m["hidden_size"], 2 * m["hidden_size"]), Cut.tensor, Block.projection),
}
