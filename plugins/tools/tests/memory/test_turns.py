"""Trainers and engines that fit a GPU together stay there; the others take turns, and who chooses is held to it."""

from __future__ import annotations

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.compose.compose import examine
from slime_tools.memory.memory_plan import most
from slime_tools.memory.trainer import Phase

SMALL, LARGE = ("+model=glm4-tiny", "+cluster=h200x1"), ("+model=qwen3-4b", "+cluster=h200x1")
SAVER = "rollout.sglang.enable_memory_saver"


@pytest.mark.parametrize(
    ("arguments", "by_turns"),
    [
        (SMALL, False),
        (LARGE, True),
        ((*SMALL, f"{SAVER}=true"), True),
        ((*LARGE, f"{SAVER}=false", "rollout.sglang.mem_fraction_static=0.2"), False),
        ((*SMALL, "cluster.device_memory_mb=null"), True),
    ],
)
def test_the_plan_decides_unless_somebody_does(arguments: tuple[str, ...], by_turns: bool) -> None:
    composed = examine(arguments)
    assert composed.problems == []
    assert composed.topology is not None
    assert composed.topology.takes_turns is by_turns
    assert {engine.fields["enable_memory_saver"] for engine in composed.topology.engines} == {by_turns}


def test_what_stays_counts_in_every_phase() -> None:
    plan = plan_of(*SMALL)
    [place] = plan.devices
    rows = place.table.rows
    for item in ("engine's weights", "KV cache", "prefill and logits"):
        assert len({rows[item].get(phase, 0.0) for phase in place.table.phases if phase is not Phase.start}) == 1
    assert rows["optimizer"][Phase.generate] == rows["optimizer"][Phase.update] > 0
    assert place.table.total(Phase.generate) == place.table.total(Phase.train) == most(place)
    assert all("trainers' way out" not in host.table.rows for host in plan.hosts)


def test_who_moves_leaves_the_device_to_the_other() -> None:
    [by_turns], [staying] = plan_of(*SMALL, f"{SAVER}=true").devices, plan_of(*SMALL).devices
    assert "optimizer" not in [item for item, row in by_turns.table.rows.items() if Phase.generate in row]
    assert most(by_turns) < most(staying)


@pytest.mark.parametrize(
    ("arguments", "where", "todo"),
    [
        ((*LARGE, f"{SAVER}=false"), "memory a device", f"Set {SAVER}=true."),
        (("+model=glm4-tiny", "+cluster=local", f"{SAVER}=false"), SAVER, "set cluster.placement=colocated"),
        (
            (*SMALL, "rollout.engines.default.sglang.enable_memory_saver=false"),
            "rollout.engines.default.sglang.enable_memory_saver",
            f"Set {SAVER}.",
        ),
    ],
)
def test_a_choice_that_cannot_be_is_refused(arguments: tuple[str, ...], where: str, todo: str) -> None:
    [problem] = examine(arguments).problems
    assert problem.where == where
    assert todo in problem.todo
