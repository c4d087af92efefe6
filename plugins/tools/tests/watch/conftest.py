"""A run directory as a run leaves it, in a few rows."""

import json

import pytest


def row(step, **values):
    names = {"rollout/reward_mean": step / 100, "train/logprob_diff_mean": 1e-6, "seconds/step": 2.0}
    return {"stage": "rl", "step": step, "time": 1.0, **names, "seconds/generate": 1.5, "seconds/train": 0.5, **values}


def sample(prompt, reward, response, asked="1+1=", **more):
    messages = [{"role": "user", "content": asked}]
    known = {"finish": "completed", "num_tokens": 3, "label": "2", "messages": messages, "weight_versions": [[1, 3]]}
    return {"prompt": prompt, "reward": reward, "response": response, **known, **more}


def lines(rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


@pytest.fixture
def make_run(tmp_path):
    """Writes a run of `num_steps` steps and `rows` behind them, with the samples of step 2."""

    def write(num_steps, samples=(), rows=(), name="it"):
        folder = tmp_path / name
        (folder / "samples").mkdir(parents=True, exist_ok=True)
        made = [{"stage": "sft", "step": 1, "train/loss": 3.0}, *(row(step) for step in range(1, num_steps + 1)), *rows]
        (folder / "metrics.jsonl").write_text(lines(made))
        if samples:
            (folder / "samples/step-000002.jsonl").write_text(lines(samples))
        (folder / "config.yaml").write_text("run: {seed: 7}\ncluster: {environment: {HF_TOKEN: hf_secret}}\n")
        return folder

    return write
