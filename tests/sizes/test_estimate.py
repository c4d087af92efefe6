"""Estimates of memory, whatever is installed of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from slime import plugins
from slime.compose.compose import Composed, examine
from slime.errors import SlimeError
from slime.plan.document import document
from slime.plan.report import report
from slime.plugins import Plugins
from slime.registry import Contribution
from slime.sizes.estimate import planned_peaks
from slime.sizes.model import ModelSizes
from slime.topology.placement import SAVER
from slime.topology.topology import Topology

WORDS = ["+model=glm4-9b", "+cluster=h100x8"]


@dataclass
class ByParameters:
    """Of a third party: two bytes a parameter on each device, and nothing else."""

    sizes: ModelSizes

    @property
    def gib(self) -> float:
        return 2 * sum(weight.numel for weight in self.sizes.weights) / 2**30

    def under(self, topology: Topology) -> ByParameters:
        return self

    def problems(self) -> Iterator[SlimeError]:
        if self.gib > (self.sizes.topology.cluster.device_memory_mb or 0) / 1024:
            yield SlimeError(f"the weights alone are {self.gib:.0f} GiB", where="acme", todo="Use a smaller model.")

    def warnings(self) -> Sequence[SlimeError]:
        return [SlimeError("only weights are counted", where="acme", todo="Leave room for the rest.")]

    def fit_together(self) -> bool:
        return False

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        yield "weights of a device", [f"  {self.gib:.1f} GiB"]

    def document(self) -> Mapping[str, Any]:
        return {"memory": {"weights": self.gib}, "pools": {}}

    def peaks(self) -> dict[str, float]:
        return {"memory/train_planned_gib": self.gib}


def installed(monkeypatch: pytest.MonkeyPatch, *contributions: Contribution) -> Plugins:
    """What is installed, with these in the place of the estimate that `slime-tools` contributes."""
    everything = plugins.load().installed
    [brings] = [each for each in everything if each.distribution == "slime-tools"]
    kept = [one for one in brings.contributions if one.kind != OURS.kind]
    assert len(kept) < len(brings.contributions)
    found = Plugins(
        [*(each for each in everything if each is not brings), replace(brings, contributions=[*kept, *contributions])]
    )
    monkeypatch.setattr(plugins, "load", lambda: found)
    return found


OURS = Contribution("memory_estimate", "cuda", ByParameters, "slime-acme", "1.0")


def sound(words: Sequence[str]) -> Composed:
    composed = examine(words)
    assert composed.problems == []
    return composed


def test_the_installed_one_says_what_a_plan_and_a_run_know_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = installed(monkeypatch, OURS)
    composed = sound(WORDS)
    assert "weights of a device\n  17.5 GiB" in report(composed, everything)
    told = document(composed, everything)
    assert told["memory"] == {"weights": pytest.approx(18_800_558_080 / 2**30)}
    assert [warning["what"] for warning in told["warnings"]] == ["only weights are counted"]
    assert composed.topology
    composed.topology.config.model.path = "pkg://slime_plugin_glm4/assets/glm4-tiny"
    assert planned_peaks(composed.topology, everything).keys() == {"memory/train_planned_gib"}


def test_what_does_not_fit_by_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, OURS)
    [problem] = examine([*WORDS, "cluster.device_memory_mb=16000"]).problems
    assert str(problem) == "acme: the weights alone are 18 GiB. Use a smaller model."


def test_without_any_a_plan_says_so_and_who_brings_one(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = installed(monkeypatch)
    composed = sound([*WORDS, "cluster.device_memory_mb=16000"])
    assert composed.memory is None
    assert SAVER not in composed.cfg.rollout.sglang, "shared GPUs go by turns, which is the default"
    text = report(composed, everything)
    assert "memory a device\n  not known: nothing that is installed estimates it. Run: pip install slime-tools." in text
    assert document(composed, everything)["memory"] is None
    assert "a published version" in text
