"""Who cannot be told from which tokens samples were drawn."""

import pytest

from slime.compose.compose import examine

NARROW = ["+model=glm4-tiny", "+cluster=local", "rollout.sampling.top_k=20", "rollout.sampling.top_p=0.9"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], []),
        (["rollout.backend=plain"], ["is 20, but only SGLang tells trainers which tokens it kept"]),
        (["algo=opd"], []),
        (["algo=opd", "algo.options.teacher_top_k=4"], ["is 20, but this objective compares with log-probs of a tea"]),
        (["rollout.sglang.speculative_algorithm=NGRAM"], ["engines do not tell from which tokens a drafted one was d"]),
    ],
)
def test_where_the_plan_refuses(words: list[str], says: list[str]) -> None:
    found = [each.what for each in examine([*NARROW, *words]).problems if each.where == "rollout.sampling.top_k"]
    assert len(found) == len(says)
    assert all(what.startswith(start) for what, start in zip(found, says, strict=True)), found
