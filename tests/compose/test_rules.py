"""Rules of layouts that need GPUs to be broken; the others are in `tests/compose/test_check.py`."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine

FLEX = ["train.megatron.moe_token_dispatcher_type=flex", "train.megatron.moe_flex_dispatcher_backend=deepep"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+cluster=h100x8"], ""),
        (["+cluster=h100x8", "train.megatron.expert_model_parallel_size=1"], "no settings for 1 ranks that share"),
        (["+cluster=local", "recipe=none", "model.path=pkg://slime_plugin_glm4/assets/GLM-4.7-Flash"], "needs GPUs"),
    ],
)
def test_ranks_that_deepep_serves(words: list[str], says: str) -> None:
    found = [str(problem) for problem in examine(["+model=glm4.7-flash", *words, *FLEX]).problems]
    of_flex = [problem for problem in found if "moe_token_dispatcher_type: is flex" in problem]
    assert len(of_flex) == bool(says), found
    assert says in "".join(of_flex)
