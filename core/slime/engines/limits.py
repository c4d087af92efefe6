"""The longest sequence that an engine takes: what SGLang 0.5.16 keeps back of its context and of its token pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.algo.stages import run_stages
from slime.config.schema import RolloutConfig, SamplingConfig, SlimeConfig

KEPT_BACK = 6
"""SGLang refuses a request of `limit - KEPT_BACK` tokens or more. A response that was aborted before its last token is
continued by a request with all its other tokens."""


def room(limit: int, *, page_size: int = 1, num_drafted: int = 0) -> int:
    """Tokens that prompt and response may have together, for any part of the response to be asked for in full.

    Args:
        limit: tokens of the context, or of the pool with its `page_size`. A request rounds its input up to whole pages,
            and leaves one free.
        num_drafted: tokens that a drafting model proposes at once; a request needs room for them behind its last one.
    """
    return limit - max(KEPT_BACK, num_drafted, 2 * page_size + limit % page_size)


def num_drafted(sglang: Mapping[str, Any]) -> int:
    """Tokens drafted at once under fields of SGLang's `ServerArgs`, as far as they are set."""
    tree = (sglang.get("speculative_eagle_topk") or 0) * (sglang.get("speculative_num_steps") or 0)
    return max(tree, sglang.get("speculative_num_draft_tokens") or 0)


def longest_sequence(cfg: SlimeConfig) -> tuple[int, str]:
    """The most tokens that prompt and response may have together, and the key of that response's limit."""
    limits = {}
    if run_stages(cfg).reinforces:
        limits["rollout.sampling.max_response_tokens"] = longest_of(cfg.rollout, cfg.rollout.sampling)
    for home, held_out in cfg.eval.all().items():
        limits[f"{home}.sampling.max_response_tokens"] = longest_of(cfg.rollout, held_out.sampling)
    key, longest = max(limits.items(), key=lambda item: item[1])
    return longest, key


def longest_of(rollout: RolloutConfig, sampling: SamplingConfig) -> int:
    """The most tokens that prompt and response may have together under `sampling`."""
    longest = rollout.max_prompt_tokens + sampling.max_response_tokens
    return min(longest, sampling.max_sequence_tokens or longest)
