"""The metric `rollout/top1_prob`: how probable engines hold the likeliest token, as a mean over the loss tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slime.hookspecs import hookimpl
from slime_sglang.engine.told import Told


def top1_prob(meta: Mapping[str, Any]) -> Iterator[float]:
    """SGLang's `output_top_logprobs` has for each token a list of (log-prob, token, text)."""
    return (math.exp(likeliest[0]) for likeliest, *_ in meta["output_top_logprobs"])


def told() -> Told:
    return Told("top1_prob", {"top_logprobs_num": 1}, top1_prob)


@hookimpl
def slime_recordings() -> Mapping[str, Callable[[], Told]]:
    return {"top1_prob": told}
