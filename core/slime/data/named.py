"""Named prompt sets: how their rows are read, and what is held out. No numpy: the plan asks, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from slime.config.schema import DataConfig, EvalConfig, EvalSetConfig, SetConfig
from slime.types import Prompt


def data_of(data: DataConfig, own: SetConfig) -> DataConfig:
    """How the rows of a named set are read."""
    keys = {key: getattr(own, key) for key in ("path", "source", "prompt_key", "label_key", "system_prompt")}
    return dataclasses.replace(data, sets={}, **keys)


@dataclass(frozen=True)
class HeldOut:
    """One held-out set.

    Attributes:
        name: empty: that of `eval.path`.
        cfg: samples a prompt, and their sampling.
    """

    name: str
    cfg: EvalConfig | EvalSetConfig
    prompts: Sequence[Prompt]
