"""What a drill kills, by the keys of its run, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime_tools.drill.plan import plan

LOCAL = ["+model=glm4-tiny", "+cluster=local"]
NONE = ["train.restarts=0", "rollout.restarts=0"]


def test_each_kind_is_killed_in_turn_as_long_as_its_budget_lasts() -> None:
    planned = plan([*LOCAL, "train.restarts=1", "rollout.restarts=2"], 7, 8)
    kinds = [kill.kind for kill in planned.kills]
    assert kinds == ["trainer", "engine", "worker", "engine", "worker", "worker", "worker"]
    assert [kill.step for kill in planned.kills] == [1, 2, 3, 4, 5, 6, 7]
    assert planned == plan([*LOCAL, "train.restarts=1", "rollout.restarts=2"], 7, 8)
    assert planned.kills != plan([*LOCAL, "train.restarts=1", "rollout.restarts=2"], 7, 8, seed=1).kills


def test_what_the_keys_do_not_say_to_survive_is_not_killed() -> None:
    planned = plan([*LOCAL, *NONE], 2)
    assert [kill.kind for kill in planned.kills] == ["worker", "worker"]
    assert [kind.keys for kind in planned.kinds.values() if not kind.budget] == NONE
    assert {kill.kind for kill in plan([*LOCAL], 3).kills} == {"trainer", "engine", "worker"}
    supervised = plan([*LOCAL, "algo=sft", "sft.num_steps=100", "eval.path=null"], 2)
    assert supervised.stage == "sft"
    assert [*supervised.kinds] == ["trainer"]


def test_a_spare_host_may_be_lost(tmp_path: Path) -> None:
    hosts = [f"cluster.hostfile={tmp_path}/hosts", "cluster.num_nodes=2", "cluster.num_trainers=2"]
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    assert plan([*LOCAL, *hosts, "cluster.spares=1"], 4).kinds["host"].budget == 1
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2\n")
    assert plan([*LOCAL, *hosts], 4).kinds["host"].budget == 0


def test_both_runs_are_short_and_lie_beside_each_other(tmp_path: Path) -> None:
    words = [
        *LOCAL,
        f"run.dir={tmp_path}",
        "run.name=mine",
        "run.num_steps=1000",
        "sft.num_steps=200",
        "run.stop_at=1h",
    ]
    planned = plan(words, 2)
    assert planned.folder == tmp_path / "drills/mine"
    assert {"run.num_steps=7", "sft.num_steps=2", "train.checkpoint.interval=2", "run.stop_at=null"} <= {*planned.words}
    unhurt, killed = planned.words_of("unhurt"), planned.words_of("killed")
    assert unhurt[:-1] == killed[:-1]
    assert [unhurt[-1], killed[-1]] == ["run.name=unhurt", "run.name=killed"]
    assert plan(unhurt, 1).num_steps == 4, "these words are a run's"


def test_the_same_is_promised_where_a_run_repeats_itself() -> None:
    assert plan(LOCAL, 1).same
    assert not plan([*LOCAL, "rollout.max_staleness=1"], 1).same


@pytest.mark.parametrize(
    ("words", "kills", "steps", "said"),
    [
        ([], 0, None, r"--kills: 0 kills are not from 1 to 1005, .*: 2 of trainers \(train.restarts=2\), 3 of engines"),
        ([], 2000, None, r"--kills: 2000 kills are not from 1 to 1005"),
        ([], 3, 3, r"--steps: 3 steps are too few for 3 kills, each of which takes one. Give at least 4."),
        (
            ["algo=sft", "sft.num_steps=99", "eval.path=null", *NONE[:1]],
            1,
            None,
            r"this run survives no kill: train.restarts=0",
        ),
        (["train.restarts=-1"], 1, None, r"train.restarts"),
    ],
)
def test_a_drill_that_cannot_be_is_refused(words: list[str], kills: int, steps: int | None, said: str) -> None:
    assert plan(LOCAL, 1, 2)
    with pytest.raises(SlimeError, match=said):
        plan([*LOCAL, *words], kills, steps)
