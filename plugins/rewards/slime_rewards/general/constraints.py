"""Reward `constraints`: the demands of a prompt on a response's form, in the columns that IFEval has."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slime.errors import did_you_mean
from slime.thinking import said
from slime.types import Sample, Verdict
from slime_rewards.general.ifeval import CHECKS, NoDetector


@dataclass
class ConstraintsReward:
    """The share of the constraints that the response keeps, or 1 for all and 0 otherwise. Parts: `kept` (the share)."""

    ids_column: str = "instruction_id_list"
    """Column with the kinds, such as `length_constraints:number_words`."""
    keywords_column: str = "kwargs"
    """Column with the keywords of each."""
    strict: bool = True
    """1 for all constraints and 0 otherwise; false gives the share."""

    def score(self, sample: Sample) -> Verdict:
        metadata, row = sample.prompt.metadata, sample.prompt.id
        kinds, keywords = metadata.get(self.ids_column), metadata.get(self.keywords_column)
        if not isinstance(kinds, list) or not isinstance(keywords, list) or len(kinds) != len(keywords) or not kinds:
            columns = f"'{self.ids_column}' and '{self.keywords_column}'"
            return Verdict.invalid(f"row {row}: {columns} are not two lists of one length")
        if unknown := [kind for kind in kinds if not isinstance(kind, str) or kind not in CHECKS]:
            return Verdict.invalid(f"row {row}: no constraint '{unknown[0]}'. {did_you_mean(str(unknown[0]), CHECKS)}")
        text = said(sample).strip()
        try:
            kept = [bool(text) and CHECKS[kind](text, given or {}) for kind, given in zip(kinds, keywords, strict=True)]
        except NoDetector:
            what = "a constraint on the language needs langdetect, which is not installed"
            return Verdict.invalid(f"row {row}: {what}. Install slime-rewards[languages].")
        except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
            return Verdict.invalid(f"row {row}: '{self.keywords_column}' does not fit its constraint: {error!r:.80}")
        share = sum(kept) / len(kept)
        return Verdict.of(float(share == 1) if self.strict else share, kept=share)
