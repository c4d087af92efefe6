"""Values that follow from others."""

import pytest

from slime.compose.compose import examine

MIXTURE = [
    "+model=glm4-moe-tiny",
    "reward=arithmetic",
    "run.num_steps=1",
    "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl",
    "rollout.max_prompt_tokens=32",
    "rollout.sampling.max_response_tokens=16",
]


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["+model=glm4-tiny"], "stale"),
        (["+model=glm4-tiny", "rollout.fp8=block"], "all"),
        (["+model=glm4-tiny", "+rollout.sglang.quantization=fp8"], "all"),
        (["+model=glm4-tiny", "+rollout.sglang.kv_cache_dtype=fp8_e4m3"], "all"),
        (["+model=glm4-tiny", "+rollout.sglang.kv_cache_dtype=bfloat16"], "stale"),
        (["+model=glm4-tiny", "algo.importance_tokens=all"], "all"),
        (["+model=glm4-tiny", "rollout.fp8=block", "algo.importance_tokens=stale"], "stale"),
        (MIXTURE, "all"),
        ([*MIXTURE, "algo.importance_tokens=stale"], "stale"),
    ],
)
def test_tokens_that_are_corrected(words: list[str], tokens: str) -> None:
    chosen = examine([*words, "+cluster=local"]).cfg.algo.importance_tokens
    assert chosen is not None
    assert chosen.name == tokens


@pytest.mark.parametrize(("fp8", "alarm"), [("null", 0.05), ("block", 0.2), ("block observe.logprob_alarm=0.1", 0.1)])
def test_the_alarm_is_that_of_the_coarsest_numbers(fp8: str, alarm: float) -> None:
    words = ["+model=glm4-tiny", "+cluster=local", *f"rollout.fp8={fp8}".split()]
    assert examine(words).cfg.observe.logprob_alarm == alarm
