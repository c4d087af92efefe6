"""A reward model: one number for an answer, of which the chosen one of a pair has the larger."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from slime.models.mapping import Rule, WeightMapping
from slime.objective import Column, LossInputs, LossTerms, Metrics, TrainsOn
from slime.types import PREFERENCE, TrainSample

if TYPE_CHECKING:
    from torch import Tensor

IS_LAST = "is_last"
"""Column: 1 at the last token of an answer, which is where its reward stands."""
SCORE = "score.weight"
"""As transformers names the head of its classes for sequence classification."""
OUTPUT = "output_layer.weight"
SCORED_AT = {"slime_scored_at": "end_token"}
"""In config.json, for who asks the model (reward `reward-model`): templates may write more behind the end token."""


@dataclass(frozen=True)
class RewardModel:
    """The loss of a pair is -log sigmoid(r_chosen - r_rejected) + c (r_chosen + r_rejected)^2: the model of Bradley and
    Terry (1952), as arXiv 2203.02155, equation 1 has it; and what keeps rewards near zero, arXiv 2312.09244, section 3.

    A reward is the head's number at the last token of the answer, its end token.

    Args:
        center: c. Only the difference of two rewards is learnt, so without it their mean is anything.

    Raises:
        ValueError: center is below 0.
    """

    center: float = 0.0

    def __post_init__(self) -> None:
        if self.center < 0:
            raise ValueError(f"center must be 0 or more, got {self.center:g}")

    trains_on = TrainsOn.pairs

    needs = Column(PREFERENCE), Column(IS_LAST)

    makes = (IS_LAST,)

    def make_columns(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        return [sample.with_columns(**{IS_LAST: _last(sample)}) for sample in samples]

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(means=("loss", "accuracy", "margin", "chosen_reward", "rejected_reward"))

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        """Its metrics are means over pairs: `accuracy`, the share of those whose chosen answer has the larger reward;
        `margin`, by how much; and the two rewards."""
        from torch.nn.functional import logsigmoid

        assert inputs.sum_by_attempt, "both answers of a pair stand in one micro-batch"
        rewards, preference = scores[0] * inputs.columns[IS_LAST], inputs.columns[PREFERENCE]
        chosen, rejected = (inputs.sum_by_attempt(rewards * (preference == sign)) for sign in (1, -1))
        margin = chosen - rejected
        loss = inputs.weighted(self.center * (chosen + rejected).square() - logsigmoid(margin))
        found = (loss, (margin > 0).to(margin.dtype), margin, chosen, rejected)
        names = self.metrics(()).means
        means = {name: loss if name == "loss" else inputs.weighted(x) for name, x in zip(names, found, strict=True)}
        return LossTerms(loss, means)

    def model(self) -> Any:
        from slime_algorithms.preferences.scoring import ScoringModel

        return ScoringModel

    def mapping(self, mapping: WeightMapping) -> WeightMapping:
        """With the head in the place of the output layer; without layers that draft, as nothing is generated."""
        left_out = [rule for rule in mapping.rules if rule.drafts or rule.megatron == OUTPUT]
        kept = tuple(rule for rule in mapping.rules if rule not in left_out)
        whole = {name for rule in kept for name in rule.hf}
        ignored = {name for name in mapping.draft_names if name not in whole}
        ignored |= {name for rule in left_out if rule.megatron == OUTPUT for name in rule.hf if name not in whole}
        ignored |= mapping.tied.keys()
        head = Rule(OUTPUT, (SCORE,), optional=True)
        return replace(mapping, rules=(*kept, head), ignored=mapping.ignored | ignored, copies={})

    def exported(self, hf: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config.json of transformers' class for sequence classification, with one label. That class takes the last
        token that is not padding: where a model pads with an end token, the export names none, so it is the last."""
        classes = [name.replace("ForCausalLM", "ForSequenceClassification") for name in hf.get("architectures") or ()]
        named = {"architectures": classes} if classes else {}
        ends = hf.get("eos_token_id")
        pads_with_end = hf.get("pad_token_id") in (ends if isinstance(ends, list) else [ends])
        padding = {"pad_token_id": None} if pads_with_end else {}
        drafts = {"num_nextn_predict_layers": 0} if hf.get("num_nextn_predict_layers") else {}
        return {**hf, **named, **padding, **drafts, "id2label": {"0": "reward"}, "label2id": {"reward": 0}, **SCORED_AT}


def _last(sample: TrainSample) -> Any:
    import numpy as np

    found = np.zeros(sample.num_response_tokens, np.float32)
    found[-1] = 1
    return found
