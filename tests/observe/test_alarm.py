"""What the alarm says of engine and trainer apart."""

from __future__ import annotations

import pytest

from slime.config.schema import Role
from slime.observe.alarm import alarm
from slime.topology.engines import EngineGroup
from tests.site import Site

DRIFT = """
from slime.contracts import Cause

class Drift:
    causes = {
        "gap/clock": Cause("the clock", "Wind it."),
        "gap/moon": Cause("the moon", "Wait, or compare {settings}."),
    }

    def measure(self, trainer, micro_batches):
        return {}

@hookimpl
def slime_explanations():
    return {"drift": Drift}
"""


def groups(**sglang: str) -> list[EngineGroup]:
    return [EngineGroup("default", Role.regular, 1, 1, sglang, {}, 1)]


def metrics(apart: float, **causes: float) -> dict[str, float]:
    return {"train/logprob_diff_mean": apart, **{f"gap/{name}": value for name, value in causes.items()}}


@pytest.mark.parametrize(("limit", "values"), [(0.2, metrics(0.2)), (0.0, metrics(3.0)), (0.2, {})])
def test_silent(limit: float, values: dict[str, float]) -> None:
    assert alarm(limit, groups(), values, 7) is None


def test_without_causes() -> None:
    problem = str(alarm(0.05, groups(), metrics(0.1), 7))
    assert problem.startswith("step 7: engine and trainer differ by 0.1000 nats a token, more than observe.logprob_ala")
    assert "Compare their precision, rotary and sampling settings" in problem


def test_an_installed_explanation_names_the_largest_cause(site: Site) -> None:
    site.add("slime-drift", DRIFT)
    clock = str(alarm(0.2, groups(), metrics(0.3, clock=0.2, moon=0.05, num_tokens=9.0), 7))
    assert clock.endswith("=0.2: the clock 0.2000, the moon 0.0500. Wind it.")
    moon = str(alarm(0.2, groups(kv_cache_dtype="fp8_e4m3"), metrics(0.3, moon=0.2), 7))
    assert "the moon 0.2000. Wait, or compare their precision (kv_cache_dtype is fp8_e4m3), rotary" in moon
