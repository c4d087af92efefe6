"""The summary of a run, made from the files that a run leaves."""

import json

from slime.events import Restored, Step
from slime.observe.metrics import MetricsLog
from slime.run_dir import RunDir
from slime_observers.console import summary

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
    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        for step, values in enumerate(sft, start=1):
            metrics(Step("sft", step, values))
        for step, values in enumerate(rl):
            metrics(Step("rl", step, values))
    run.export.mkdir()
    (run.export / "config.json").write_text("{}")
    run.close()
    return run


def test_the_summary_says_what_happened(tmp_path):
    run = finished_run(tmp_path / "tiny-local")
    text = summary.write(run.path)
    assert (run.path / "summary.txt").read_text() == text
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
        "  metrics.jsonl   every metric of every step, a JSON object a line",
        "  export          the final model as a Hugging Face folder",
        "",
        f'load the model:  AutoModelForCausalLM.from_pretrained("{run.export}")',
    ]


def test_the_class_that_reads_a_reward_model_is_named(tmp_path):
    run = finished_run(tmp_path / "run", rl=[])
    config = {"architectures": ["Glm4ForSequenceClassification"], "model_type": "glm4", "num_hidden_layers": 2}
    (run.export / "config.json").write_text(json.dumps(config))
    assert f'AutoModelForSequenceClassification.from_pretrained("{run.export}")' in summary.write(run.path)


def test_a_run_of_the_supervised_stage_alone_has_no_reward_to_show(tmp_path):
    run = finished_run(tmp_path / "run", rl=[])
    text = summary.write(run.path)
    assert "reward" not in text


def test_memory_stands_beside_its_plan(tmp_path):
    first = {"memory/train_gib": 70.0, "memory/train_host_gib": 110.0, "memory/logprobs_gib": 30.0}
    planned = {"memory/train_planned_gib": 75.9, "memory/train_host_planned_gib": 120.0}
    run = finished_run(tmp_path / "run", sft=[first | planned, first | {"memory/train_gib": 76.04}], rl=[])
    lines = summary.write(run.path).splitlines()
    start = lines.index("trainers held, GiB     at most   planned")
    assert lines[start + 1 : start + 4] == [
        "  train                   76.0      75.9",
        "  train on the host      110.0     120.0",
        "  logprobs                30.0",
    ]


def test_a_run_that_died_before_its_first_step(tmp_path):
    assert str(tmp_path) in summary.write(finished_run(tmp_path / "run", sft=[], rl=[]).path)
