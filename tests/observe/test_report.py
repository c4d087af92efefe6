"""Summary and plot of a run, made from the files that a run leaves."""

import pytest
from PIL import Image

from slime.observe import report
from slime.observe.metrics import MetricsLog, read_rows
from slime.observe.trackers import Trackers
from slime.run_dir import RunDir

SFT = [{"train/loss": 2.0, "seconds/step": 30.0, "tokens_per_s": 9000}, {"train/loss": 0.5, "seconds/step": 45.0}]
RL = [
    {"eval/reward_mean": 0.4, "seconds/eval": 7.0},
    {
        "rollout/reward_mean": 0.41,
        "seconds/generate": 3.0,
        "seconds/other": 0.1,
        "seconds/train": 0.9,
        "seconds/step": 4.0,
    },
    {
        "rollout/reward_mean": 0.8,
        "seconds/generate": 4.0,
        "seconds/other": 0.0,
        "seconds/train": 2.0,
        "seconds/step": 6.0,
    }
    | {"eval/reward_mean": 0.9, "train/logprob_diff_mean": 0.004},
]


def finished_run(path, sft=SFT, rl=RL):
    run = RunDir.open(path)
    with MetricsLog(run, Trackers({})) as metrics:
        for step, values in enumerate(sft, start=1):
            metrics.log("sft", step, values)
        for step, values in enumerate(rl):
            metrics.log("rl", step, values)
    run.export.mkdir()
    (run.export / "config.json").write_text("{}")
    run.close()
    return run


def test_the_summary_says_what_happened(tmp_path):
    run = finished_run(tmp_path / "tiny-local")
    text = report.write(run)
    assert run.summary.read_text() == text
    assert text.splitlines() == [
        "tiny-local",
        "==========",
        "",
        "sft      2 steps   in 1:15   9,000 tokens/s   loss 2.0000 -> 0.5000",
        "rl       2 steps   in 0:10",
        "",
        "held-out reward   0.400 -> 0.900   (+0.500)",
        "training reward   0.410 -> 0.800   (+0.390)",
        "log-prob gap      0.004 nats a token, 0.004 at most",
        "",
        "a step took 5.00 s, of which",
        "  generate        3.50 s   70%  ############################",
        "  train           1.45 s   29%  ############",
        "  other           0.05 s    1%",
        "",
        str(run.path),
        "  report.html     the run on one page: plots, samples, config",
        "  reward.png      the reward, in training and on held-out prompts",
        "  metrics.jsonl   every metric of every step, a JSON object a line",
        "  export          the final model as a Hugging Face folder",
        "",
        f'load the model:  AutoModelForCausalLM.from_pretrained("{run.export}")',
    ]


def test_a_run_of_the_supervised_stage_alone_has_no_reward_to_show(tmp_path):
    run = finished_run(tmp_path / "run", rl=[])
    text = report.write(run)
    assert "reward" not in text
    assert not run.reward_plot.exists()


def test_memory_stands_beside_its_plan(tmp_path):
    first = {"memory/train_gib": 70.0, "memory/train_host_gib": 110.0, "memory/logprobs_gib": 30.0}
    planned = {"memory/train_planned_gib": 75.9, "memory/train_host_planned_gib": 120.0}
    run = finished_run(tmp_path / "run", sft=[first | planned, first | {"memory/train_gib": 76.04}], rl=[])
    lines = report.write(run).splitlines()
    start = lines.index("trainers held, GiB     at most   planned")
    assert lines[start + 1 : start + 4] == [
        "  train                   76.0      75.9",
        "  train on the host      110.0     120.0",
        "  logprobs                30.0",
    ]


def test_a_run_that_died_before_its_first_step(tmp_path):
    assert str(tmp_path) in report.write(finished_run(tmp_path / "run", sft=[], rl=[]))


def test_the_plot_is_drawn_with_both_curves(tmp_path):
    run = finished_run(tmp_path / "run")
    report.write(run)
    with Image.open(run.reward_plot) as image:
        assert image.size == (1200, 675)
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {(0x21, 0x71, 0xB5), (0xE6, 0x55, 0x0D)} <= colours  # running mean and held-out, as drawn


@pytest.mark.parametrize("count", [0, 1, 3, 12])
def test_the_running_mean_is_the_mean_of_the_last_five(count):
    values = [float(value * value) for value in range(count)]
    expected = [sum(values[max(0, i - 4) : i + 1]) / min(i + 1, 5) for i in range(count)]
    assert report._running_mean(values) == pytest.approx(expected)


def test_the_curves_have_the_steps_of_the_rl_rows(tmp_path):
    rows = read_rows(finished_run(tmp_path / "run").metrics)
    assert report._curve(rows, "eval/reward_mean") == ([0, 2], [0.4, 0.9])
