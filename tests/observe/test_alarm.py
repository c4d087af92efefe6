"""What the alarm says of engine and trainer apart."""

from __future__ import annotations

import pytest

from slime.config.schema import SlimeConfig
from slime.observe.alarm import alarm


def config(limit: float = 0.2, **sglang: str) -> SlimeConfig:
    cfg = SlimeConfig()
    cfg.observe.logprob_alarm, cfg.rollout.sglang = limit, dict(sglang)
    return cfg


def metrics(apart: float, **causes: float) -> dict[str, float]:
    return {"train/logprob_diff_mean": apart, **{f"gap/{name}": value for name, value in causes.items()}}


@pytest.mark.parametrize(("limit", "values"), [(0.2, metrics(0.2)), (0.0, metrics(3.0)), (0.2, {})])
def test_silent(limit: float, values: dict[str, float]) -> None:
    assert alarm(config(limit), values, 7) is None


def test_without_causes() -> None:
    problem = str(alarm(config(0.05), metrics(0.1), 7))
    assert problem.startswith("step 7: engine and trainer differ by 0.1000 nats a token, more than observe.logprob_ala")
    assert "Compare their precision, rotary and sampling settings" in problem


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
    assert advice in str(alarm(config(), metrics(0.4, **causes), 7))


def test_it_gives_the_figures_and_the_precision_of_the_cache() -> None:
    causes = {"rest": 0.25, "weights": 0.07, "experts": 0.05, "num_tokens": 100.0}
    problem = str(alarm(config(kv_cache_dtype="fp8_e4m3"), metrics(0.31, **causes), 1))
    assert "=0.2: weights in FP8 0.0700, other experts 0.0500, all else 0.2500" in problem
    assert "precision (kv_cache_dtype is fp8_e4m3), rotary" in problem
