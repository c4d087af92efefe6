"""Whole runs on this machine: real Ray, Megatron-core and SGLang, started as a user starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import slime
from plugins.observers.tests.tensorboard.test_tensorboard import events
from slime.checkpoints import published
from slime.compose.data_files import FIRST_ROWS
from slime.files import files_under
from slime.run_dir import RunDir
from slime_cluster.ray.reaper import wait_until_gone
from slime_testing.forked import of_a_run
from slime_testing.patience import run_within
from tests.running import GONE_S, NO_CHECKPOINTS, SPREAD, Run, command_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_run_leaves_what_the_summary_names(finished: Run) -> None:
    summary = (finished.path / "summary.txt").read_text()
    assert finished.text().endswith(summary)
    for name in (
        "config.yaml",
        "plugins.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "reward.png",
        "report.html",
        "export",
    ):
        assert name in summary
        assert (finished.path / name).exists()
    card = (finished.path / "export/README.md").read_text()
    digest = published(finished.path / "checkpoints")[-1].driver_state()["prompts"]["content_hash"]
    for said in ("library_name: transformers", f"| {digest} |", "| reinforcement-learning steps | 4, of"):
        assert said in card
    used = json.loads((finished.path / "plugins.json").read_text())["used"]
    assert used["reward"]["distribution"] == "slime-rewards"
    assert used["algo"] == {"name": "grpo", "distribution": "slime-rl", "version": slime.__version__}


def test_every_step_is_measured(finished: Run) -> None:
    steps = [row for row in finished.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert [row["step"] for row in finished.rows("rl") if "eval/reward_mean" in row] == [0, 2, 4]
    # fp32 on both sides, the same tokens: what is left is the order of additions.
    assert max(row["train/logprob_diff_max"] for row in steps) < 1e-4
    assert all(row["publish/num_bytes"] == 789_376 * 4 for row in steps)


def test_an_engine_imports_no_model_that_it_does_not_serve_and_no_trainer(finished: Run) -> None:
    """SGLang's log tells of models that need packages which are not installed, and Megatron-core of itself."""
    log = (finished.path / "logs/engine-0.log").read_text()
    assert "sglang.srt.models" not in log
    assert "Megatron" not in log


def test_tensorboard_shows_samples_of_every_step_and_evaluation(finished: Run) -> None:
    shown = [
        (event.step, value.tag.removesuffix("/samples"))
        for event in events(finished.path / "tensorboard/rl")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "text"
    ]
    rollouts, evaluations = ([step for step, of in shown if of == name] for name in ("rollout", "eval"))
    assert (rollouts, evaluations) == ([1, 2, 3, 4], [0, 2, 4])


def test_the_line_that_a_run_prints_last_loads_what_was_trained(finished: Run) -> None:
    """In an interpreter of its own, which has seen nothing of slime: that is where a user types it. The model answers
    as the engine did in the last evaluation, and not as in the one before."""
    load = (finished.path / "summary.txt").read_text().splitlines()[-1].removeprefix("load the model:").strip()
    before, last = (
        [json.loads(line) for line in (finished.path / f"samples/eval-00000{step}.jsonl").read_text().splitlines()]
        for step in (2, 4)
    )
    program = f"""
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = {load}
tokenizer = AutoTokenizer.from_pretrained(model.name_or_path)
answers = []
for messages in json.load(open(sys.argv[1])):
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
    said = model.generate(ids, do_sample=False, max_new_tokens=16)[0, ids.shape[1]:]
    answers.append(tokenizer.decode(said, skip_special_tokens=True))
print(json.dumps(answers))
"""
    asked = finished.folder / "asked.json"
    asked.write_text(json.dumps([row["messages"] for row in last]))
    done = run_within(120, [sys.executable, "-c", program, asked])
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers == [row["response"] for row in last]
    assert answers != [row["response"] for row in before]


def test_a_checkpoint_is_scored_beside_its_run(finished: Run) -> None:
    """While somebody holds the run directory, and bit for bit as the run scored the same weights."""
    before = contents(finished.path)
    with RunDir.open(finished.path):
        command = [sys.executable, "-m", "slime", "eval", str(finished.path), "--checkpoint", "6"]
        done = run_within(350, command, cwd=finished.folder, env={**os.environ, **of_a_run()})
    scored = finished.path / "eval/step-000006"
    assert f"{finished.path}/checkpoints/step-000006 after 4 supervised steps and 2 reinforcement" in done.stdout
    result = json.loads((scored / "result.json").read_text())
    [row] = [row for row in finished.rows("rl") if row["step"] == 2 and "eval/reward_mean" in row]
    assert {name: result["metrics"][name] for name in row if name.startswith("eval/")}.items() <= row.items()
    name = "samples/eval-000002.jsonl"
    assert (scored / name).read_bytes() == (finished.path / name).read_bytes()
    after = {name: data for name, data in contents(finished.path).items() if not name.startswith("eval/")}
    assert after == before


REPLAYED = {
    "": "step 4: 16 metrics, the same to the bit",
    "+cluster=local2 train.megatron.tensor_model_parallel_size=2": r"train/grad_norm +(\S+) +(\S+) ",
    "train.optimizer.lr=0.001": r"step 4: 16 metrics, largest difference [\d.]+% of train/",
    "--generate": r"of 4 prompts\n  the same tokens +16 of 16\n  the same verdict +16 of 16\n.* 0 nats",
}
"""What the commands of docs/debugging.md say last, by their words; the other learning rate is the control."""
PAGE = Path(__file__).parents[1] / "docs/debugging.md"


@pytest.mark.parametrize(
    "words", re.findall(r"^    slime replay runs/glm4-tiny-local 12 ?(.*)$", PAGE.read_text(), re.M)
)
def test_a_step_is_replayed(finished: Run, words: str) -> None:
    """By way of step 3, from the checkpoint before that, to the bit, or in another layout. While somebody holds the run
    directory, in which nothing changes."""
    before = contents(finished.path)
    with RunDir.open(finished.path):
        command = [sys.executable, "-m", "slime", "replay", str(finished.path), "4", *words.split()]
        done = run_within(350, command, cwd=finished.folder, env={**os.environ, **of_a_run()})
    assert "checkpoints/step-000006, rl 2\nstep 3: 16 metrics, " in done.stdout, done.stdout
    said = re.search(REPLAYED[words], done.stdout)
    assert said, done.stdout
    for recorded, replayed in [said.groups()] if said.groups() else []:
        assert float(replayed) == pytest.approx(float(recorded), rel=1e-5), "fp32, in another order of additions"
    assert contents(finished.path) == before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which says who holds the directory."""
    found = {str(path.relative_to(folder)): path for path in files_under(folder)}
    return {name: path.read_bytes() for name, path in found.items() if name != "lock"}


def test_a_killed_run_leaves_no_process_and_continues_bit_for_bit(finished: Run, tmp_path: Path) -> None:
    """Two supervised and two reinforcement-learning checkpoints; `kill -9` after the first of the latter. Nor does it
    matter where things lie and how weights travel: colocated by turns until then, afterwards staying, by broadcast."""
    run = Run(tmp_path, settings={"cluster.placement": "colocated"}).start()
    run.until(lambda: (run.path / "checkpoints/step-000006").exists())
    run.kill(signal.SIGKILL)
    assert run.strays() == []
    assert len(run.temporary) >= 2
    assert run.litter() == []
    run.settings |= {"rollout.sglang.enable_memory_saver": "false", "weights.transport": "broadcast"}
    run.start().until(lambda: run.has_step("rl", 3))
    run.remember()
    run.succeed()
    assert run.litter() == []
    assert run.weights() == finished.weights()
    assert run.losses() == finished.losses()
    assert any(loss for stage, _, loss in run.losses() if stage == "rl"), "what moves nothing is the same everywhere"
    moved = {row["step"] for row in run.rows("rl") if "seconds/offload" in row}
    assert moved == {1, 2}, "the steps of before the kill"


def test_a_run_whose_data_are_wrong_leaves_nothing(tmp_path: Path) -> None:
    """Wrong beyond the first rows, which are read before Ray is started. Whatever a run starts works in its folder."""
    rows = tmp_path / "prompts.jsonl"
    rows.write_text('{"prompt": "1+1=", "label": "2"}\n' * FIRST_ROWS + '{"label": "3"}\n')
    run = Run(tmp_path, settings={"data.path": rows, "reward": "arithmetic"}).start()
    started: set[psutil.Process] = set()

    def is_reading() -> bool:
        started.update(working_in(tmp_path))
        return "reading the data" in run.text()

    run.until(is_reading)
    assert run.finish() == 2
    assert f"{rows} line {FIRST_ROWS + 1}: the row has no key 'prompt'" in run.text()
    assert len(started) > 2, "the driver is not all that was seen"
    assert wait_until_gone(working_in(tmp_path), GONE_S) == set()
    assert not run.path.exists()


def working_in(folder: Path) -> set[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended since, or is another user's
            if process.cwd() == str(folder):
                found.add(process)
    return found


def servers(run: Run) -> list[psutil.Process]:
    """The processes that the engines were started as."""
    found = []
    for child in psutil.Process(run.process.pid).children(recursive=True):
        found += [child] * ("slime_sglang.engine.launcher" in command_of(child))
    return found


def test_a_run_that_is_interrupted_while_its_engine_starts_leaves_no_process(tmp_path: Path) -> None:
    """The engine is kept from coming up, which the supervised steps do not wait for. It is interrupted, as a run of
    agents (`plugins/agents`) is."""
    run = Run(tmp_path, cluster="local2", settings={"sft.num_steps": 5000}).start()
    run.until(lambda: bool(servers(run)))
    servers(run)[0].suspend()
    run.until(lambda: run.has_step("sft", 1))
    second = Run(tmp_path / "again").start_beside(run)
    assert second.finish() == 2
    assert "another run is using this directory" in second.text()
    run.kill(signal.SIGINT)
    assert run.process.returncode == 130
    assert run.strays() == []
    said = run.text()
    assert re.search(r"slime: interrupted; (nothing was saved yet|the same command continues after sft \d+)\n$", said)
    assert re.search(r"starting Ray\n.*reading the data\n.* demonstrations, .* run directory .*/runs/it\n", said)
    assert re.search(
        r"starting 2 trainer ranks and 1 engine\n(.*waiting for.*\n)*.*loading weights\n(.*waiting for.*\n)*"
        r".*ready: starts from .*; engines are still starting\n",
        said,
    )


def test_an_engine_that_dies_at_its_start_and_may_not_return_ends_the_supervised_steps(tmp_path: Path) -> None:
    """One that may return does, and they go on: `test_run_killed_at_start.py`."""
    run = Run(tmp_path, settings={"sft.num_steps": 5000, "rollout.restarts": 0, **NO_CHECKPOINTS}).start()
    run.until(lambda: bool(servers(run)))
    engine = servers(run)[0]
    engine.suspend()
    run.until(lambda: run.has_step("sft", 1))
    engine.kill()
    assert run.finish() == 2
    last = run.text().splitlines()[-1]
    assert re.match(r"slime: engine-0 \(pid \d+, http://[^:]*:\d*\): was killed by SIGKILL, as it started\. ", last)
    assert "engine-0.log" in last


def test_mixtures_of_experts_over_two_ranks_and_two_kinds_of_engines(tmp_path: Path) -> None:
    """Expert parallelism, latent attention, a prediction layer and the other algorithm settings, in one run: engines
    and trainer agree, also on weights that were trained and published.

    One engine has two ranks that share requests and experts, of which two lie on both; the other has one.
    """
    spread = {name.replace("rollout.sglang", "rollout.engines.spread.sglang"): value for name, value in SPREAD.items()}
    settings = {
        "reward": "arithmetic",
        "data.path": "pkg://slime_rewards.math/data/arithmetic-train.jsonl",
        "sft.path": "pkg://slime_rewards.math/data/arithmetic-sft.jsonl",
        "run.num_steps": 2,
        "eval.interval": 1000,
        "rollout.engines.default.devices": 1,
        "+rollout.engines.spread.devices": 2,
        **spread,
        "+rollout.engines.spread.sglang.ep_num_redundant_experts": 2,
        "rollout.max_prompt_tokens": 32,
        "rollout.over_sampling": 1.5,
        "rollout.sampling.max_response_tokens": 8,
        "train.steps_per_rollout": 2,
        "train.megatron.expert_model_parallel_size": 2,
        "train.mtp_loss_scale": 0.2,
        "algo.kl_coef": 0.01,
        "algo.kl_in": "reward",
        "algo.loss_mean": "sample",
        **NO_CHECKPOINTS,
    }
    run = Run(tmp_path, model="deepseek-v3-tiny", cluster="local2", settings=settings, forked=True).start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert steps[1]["train/kl"] != 0  # the reference is the model before step 1
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps)
    assert all(row["train/mtp_loss"] > 0 for row in steps)
    assert "model.layers.4.eh_proj.weight" in run.weights()


def test_engines_in_fp8(tmp_path: Path) -> None:
    """A mixture of experts that trains in fp32 and generates from E4M3, in blocks of 128 x 128: to its end, and resumed
    with an alarm that says why the two are apart."""
    settings = {
        "reward": "arithmetic",
        "data.path": "pkg://slime_rewards.math/data/arithmetic-train.jsonl",
        "sft.path": "pkg://slime_rewards.math/data/arithmetic-sft.jsonl",
        "run.num_steps": 2,
        "rollout.fp8": "block",
        "rollout.max_prompt_tokens": 32,
        "rollout.sampling.max_response_tokens": 8,
        "algo.entropy_coef": 0.01,  # an untrained model earns nothing; this moves it
    }
    run = Run(tmp_path, model="glm4-moe-tiny", cluster="local", settings=settings, forked=True).start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(1e-3 < row["train/logprob_diff_mean"] < 0.2 for row in steps), "engines compute with rounded weights"
    assert not any(name.endswith("_scale_inv") for name in run.weights()), "what is trained is exported"

    run.settings = {**settings, "run.num_steps": 3, "observe.logprob_alarm": 1e-3}
    assert run.start().finish() == 2, run.text()
    row = run.rows("rl")[-1]
    apart = row["train/logprob_diff_mean"]
    assert row["step"] == 3
    causes = {name: row[f"gap/{name}"] for name in ("weights", "experts", "rest")}
    assert causes["weights"] > 1e-3
    assert causes["rest"] < 1e-4, "engines on a CPU round weights, and nothing else"
    figures = "weights in FP8 {weights:.4f}, other experts {experts:.4f}, all else {rest:.4f}".format_map(causes)
    assert f"differ by {apart:.4f} nats a token, more than observe.logprob_alarm=0.001: {figures}" in run.text()
