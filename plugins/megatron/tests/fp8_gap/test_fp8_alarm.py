"""What the alarm says of FP8 engines, by the largest cause."""

from __future__ import annotations

import pytest

from slime.config.schema import Role
from slime.observe.alarm import alarm
from slime.topology.engines import EngineGroup


def told(apart: float, causes: dict[str, float]) -> str:
    groups = [EngineGroup("default", Role.regular, 1, 1, {"kv_cache_dtype": "fp8_e4m3"}, {}, 1)]
    values = {"train/logprob_diff_mean": apart, **{f"gap/{name}": value for name, value in causes.items()}}
    return str(alarm(0.2, groups, values, 7))


@pytest.mark.parametrize(
    ("causes", "advice"),
    [
        ({"weights": 0.3, "experts": 0.1, "rest": 0.2}, "E4M3 costs this model: keep more modules in BF16"),
        ({"weights": 0.1, "experts": 0.3, "rest": 0.2}, "Rounding sends tokens to other experts"),
        ({"weights": 0.1, "activations": 0.3, "rest": 0.2, "num_tokens": 9.0}, "Engines round activations too"),
        ({"weights": 0.1, "experts": 0.2, "rest": 0.3}, "FP8 weights do not explain it: compare their precision"),
    ],
)
def test_it_names_the_largest_cause(causes: dict[str, float], advice: str) -> None:
    assert advice in told(0.4, causes)


def test_it_gives_the_figures_and_the_precision_of_the_cache() -> None:
    problem = told(0.31, {"rest": 0.25, "weights": 0.07, "experts": 0.05, "num_tokens": 100.0})
    assert "=0.2: weights in FP8 0.0700, other experts 0.0500, all else 0.2500" in problem
    assert "precision (kv_cache_dtype is fp8_e4m3), rotary" in problem
