"""What the comparisons with verl and TRL on one GPU do before and after the two programs run."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.plugins import load
from slime_testing.plugins import sample

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_verl_gets_the_run_that_slime_gets(program: Any, tmp_path: Path) -> None:
    composed = examine([*program.RUN, *program.beside.OWN])
    assert composed.problems == []
    cfg = composed.cfg
    assert (cfg.algo.loss_mean.name, cfg.algo.kl_coef) == ("token", None)
    words = program.verl_words(cfg, tmp_path, tmp_path / "p", 40, attention="sdpa", free_cache=False)
    given = dict(word.split("=", 1) for word in words)
    assert given["data.train_batch_size"] == "32"
    assert given["actor_rollout_ref.rollout.n"] == "16"
    assert given["data.max_response_length"] == "96"
    assert float(given["actor_rollout_ref.actor.optim.lr"]) == cfg.train.optimizer["lr"]
    assert given["actor_rollout_ref.rollout.free_cache_engine"] == "false"
    assert given["actor_rollout_ref.model.use_remove_padding"] == "false"
    served = "+actor_rollout_ref.rollout.engine_kwargs.sglang."
    assert given[f"{served}attention_backend"] == json.dumps(cfg.rollout.sglang["attention_backend"])
    assert json.loads(given[f"{served}cuda_graph_bs_decode"]) == cfg.rollout.sglang["cuda_graph_bs_decode"]
    assert given[f"{served}enable_memory_saver"] == "false"


def test_vllm_gets_no_fields_of_sglang(program: Any, tmp_path: Path) -> None:
    cfg = examine([*program.beside.RUN, "rollout.sampling.max_response_tokens=2048"]).cfg
    settings = {"attention": "flash_attention_2", "free_cache": False, "served_by": "vllm"}
    given = dict(word.split("=", 1) for word in program.verl_words(cfg, tmp_path, tmp_path / "p", 25, **settings))
    assert given["actor_rollout_ref.rollout.name"] == "vllm"
    assert given["actor_rollout_ref.model.use_remove_padding"] == "true"
    assert given["data.max_response_length"] == "2048"
    assert not [word for word in given if "sglang" in word]


def test_prompts_are_the_same(program: Any, tmp_path: Path) -> None:
    from pyarrow import parquet

    source = resolve("pkg://slime_rewards.starter/data/word-problems-heldout.jsonl")
    program.write_prompts(source, tmp_path / "p.parquet")
    rows = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert len(rows) == len(source.read_text().splitlines())
    assert rows[0]["prompt"][0]["role"] == "user"
    assert rows[0]["reward_model"]["style"] == "rule"


@pytest.mark.parametrize("text", ["It is 85.", "80 + 5 = 85", "86", "85 of 90", "no number", "The answer is 1,085"])
def test_rewards_are_the_same(text: str) -> None:
    compute_score = runpy.run_path(str(BENCHMARKS / "last_number.py"))["compute_score"]  # as verl does: by its path
    reward = load().rewards.create("math", answer="number")
    for label in ("85", "1085"):
        assert compute_score("", text, label) == reward.score(sample(text, label)).value


def test_both_are_read_alike(program: Any) -> None:
    ours, theirs = [], []
    for step in range(1, 11):
        values = {"step": 1.0 if step > 5 else 9.0, "train": 0.4, "reward": 0.2}
        row = {f"seconds/{name}": value for name, value in values.items()}
        ours.append({"stage": "rl", "step": step, "time": 100.0 + step, "rollout/num_tokens": 160.0, **row})
        ours[-1]["rollout/reward_mean"] = step / 10
        data = {f"timing_s/{name}": 2 * value for name, value in values.items()}
        data |= {"response_length/mean": 10.0, "critic/score/mean": step / 10}
        theirs.append({"step": step, "seen": 100.0 + step, "data": data})
    slime = program.beside.measured(program.beside.read_slime(ours), 50.0, 7.0)
    verl = program.beside.measured(program.read_verl(theirs, 16), 50.0, 9.0)
    assert (slime.seconds["step"], verl.seconds["step"]) == (1.0, 2.0)
    assert (slime.seconds["reward"], verl.seconds["reward"]) == (0.2, 0.4)
    assert (slime.start, verl.start) == (101 - 9 - 50, 101 - 18 - 50)
    assert (slime.tokens_per_s, verl.tokens_per_s) == (160.0, 80.0)
    assert "step of slime over verl's: 0.50; promised at most 0.7: kept" in program.beside.table(
        {"slime": slime, "verl": verl}
    )


def test_words_of_the_command_line_replace_those_of_the_run(program: Any) -> None:
    words = program.beside.words(program.RUN, ["+cluster=h100x1", "run.seed=3"])
    assert words == ["+model=qwen2.5-0.5b", "task=word-problems", *program.beside.OWN, "+cluster=h100x1", "run.seed=3"]


PROGRAM = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for step in range(1, 8):
    row = {"stage": "rl", "step": step, "time": time.time(), "pid": child.pid}
    row |= {"rollout/num_tokens": 10, "rollout/reward_mean": 0.5, "seconds/step": 0.01}
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps(row) + chr(10))
time.sleep(600 * int(sys.argv[2]))
child.kill()
child.wait()
sys.exit(3)
"""


@pytest.mark.parametrize(("hangs", "how"), [(True, "was ended after 4 s"), (False, "ended with code 3")])
def test_what_a_program_did_counts_however_it_ends(program: Any, tmp_path: Path, hangs: bool, how: str) -> None:
    rows = tmp_path / "rows.jsonl"
    command = [sys.executable, "-c", PROGRAM, str(rows), str(int(hangs))]
    seen = program.beside.watched("peer", command, rows, tmp_path / "log", 4.0 if hangs else 60.0)
    assert f"peer {how}, with 7 rows" in seen.how
    child = seen.rows[0]["pid"]
    assert not (psutil.pid_exists(child) and program.beside.alive(psutil.Process(child)))
    told = program.beside.report("a step", (seen, program.beside.read_slime(seen.rows)))
    assert "| peer | 7 |" in told
    assert "promised" not in told
    assert "None got beyond 5 steps" in program.beside.report("a step", (seen, []))


def rows_of(step_s: float, tokens: float) -> list[dict[str, float]]:
    return [{"end": step_s * step, "step": step_s, "tokens": tokens, "score": 0.5} for step in range(1, 9)]


def test_what_each_program_did_stands_in_one_table(program: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    beside = program.beside
    seen = {"TRL": 2.0, "TRL, SDPA": 4.0, "slime, ahead": 1.0, "verl": 3.0}
    for number, (name, step_s) in enumerate(seen.items()):
        one = beside.Watched(name, [], -10.0 * (number + 1), 8.0 + number, f"{name} ended")
        beside.keep(tmp_path, "a step", one, rows_of(step_s, 100.0))
    beside.keep(tmp_path, "a step", beside.Watched("AReaL", [], 0.0, 1.0, "AReaL ended with code 1"), [])
    monkeypatch.setattr(sys, "argv", ["beside.py", str(tmp_path)])
    beside.main()
    told = capsys.readouterr().out
    assert told.index("| slime, ahead | 8 |") < told.index("| TRL, SDPA | 8 |")
    assert "AReaL ended with code 1" in told
    # Each column has a best peer of its own; 30, 10, 20 and 40 s from the command to the first step.
    assert "start of slime, ahead over TRL's: 3.00; promised at most 0.7: MISSED" in told
    assert "step of slime, ahead over TRL's: 0.50; promised at most 0.7: kept" in told
    assert "seconds a token of slime, ahead over TRL's: 0.50; promised at most 0.7: kept" in told
    assert "memory of slime, ahead over TRL's: 1.25; promised at most 0.7: MISSED" in told


def test_trl_gets_the_settings_that_are_named() -> None:
    trl = importlib.import_module("against_trl")
    given = ["--trl-vllm", "0.3", "--trl-set", "use_liger_kernel=true", "--trl-set", 'loss_type="grpo"']
    options = trl.options_of().parse_args(given)
    assert dict(trl.trl_settings(options)) == {
        "attention": "sdpa",
        "use_transformers_continuous_batching": False,
        "use_vllm": True,
        "vllm_gpu_memory_utilization": 0.3,
        "use_liger_kernel": True,
        "loss_type": "grpo",
    }


def parts_of_the_peers() -> list[str]:
    parts = ["slime", "ahead", "trl", "trl-liger", "trl-sdpa", "verl", "verl-plain", "verl-exact", "verl-sglang"]
    return [*parts, *(f"long-{part}" for part in parts)]


def test_every_part_beside_peers_is_the_same_run(program: Any) -> None:
    """The steps of short answers are alike for all, and those of long ones; slime accepts each."""
    shown = subprocess.run(
        [BENCHMARKS / "peers.sh", "OUT", "MODEL", *parts_of_the_peers()],
        env={**os.environ, "SHOW_ONLY": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    steps: dict[str, set[str]] = {"OUT/short": set(), "OUT/long": set()}
    for command in shown.stdout.splitlines():
        _, file, *words = shlex.split(command)
        folder = next(word for word in words if word.startswith("OUT/"))
        own = [word for word in words if "=" in word and word.startswith(("+", "task=", "rollout.", "train."))]
        composed = examine(program.beside.words(program.beside.RUN, own))
        assert composed.problems == [], file
        steps[folder].add(program.beside.size(composed.cfg, Path("MODEL")))
    assert [len(each) for each in steps.values()] == [1, 1]
    assert "of at most 2048 tokens" in steps["OUT/long"].pop()
