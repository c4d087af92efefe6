"""A run with LoRA on this machine, through the real engine: it learns, and PEFT reads what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slime.config.paths import resolve
from slime_testing.forked import of_a_run
from slime_testing.models import write_checkpoint
from slime_testing.patience import run_within
from tests.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

REWARD = """
from slime.types import Sample


def score(sample: Sample) -> float:
    text = sample.response
    return text.count("7") / max(len(text), 1)
"""
"""A preference that any model can learn in a few steps, whatever it knew."""


def settings_of(folder: Path, base: Path) -> dict[str, object]:
    """Of a run in `folder` that begins with the model `base`."""
    (folder / "reward.py").write_text(REWARD)
    return {
        "model.path": base,
        "model.init": "checkpoint",
        "reward.path": f"{folder}/reward.py:score",
        "task": "none",
        "data.path": "pkg://slime_rewards.math/data/arithmetic-train.jsonl",
        "rollout.max_prompt_tokens": 32,
        "rollout.sampling.max_response_tokens": 16,
        "train.lora.rank": 8,
        "+train.optimizer.lr": 1e-2,
        "run.num_steps": 10,
        "rollout.prompts_per_step": 8,
        "rollout.samples_per_prompt": 8,
        "eval.path": "heldout.jsonl",
        "eval.interval": 5,
        "train.checkpoint.interval": 5,
    }


def require_learning(run: Run) -> None:
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    first, last = steps[0]["rollout/reward_mean"], steps[-1]["rollout/reward_mean"]
    assert last > first + 0.2, [row["rollout/reward_mean"] for row in steps]
    # fp32 on both sides: the engine multiplies by the sum of weight and adapter, the trainer by each.
    assert max(row["train/logprob_diff_max"] for row in steps) < 1e-3


def test_a_run_with_lora_learns_and_leaves_what_peft_reads(finished: Run, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = finished.path / "export"
    run = Run(tmp_path, settings=settings_of(tmp_path, base), shortened={}, forked=True).start().succeed()
    require_learning(run)
    tiny = sum(file.stat().st_size for file in (run.path / "checkpoints").rglob("*.distcp"))
    whole = sum(file.stat().st_size for file in (finished.path / "checkpoints").rglob("*.distcp"))
    assert tiny < whole

    merged = AutoModelForCausalLM.from_pretrained(run.path / "export").state_dict()
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run.path / "adapter")
    for name, tensor in adapted.merge_and_unload().state_dict().items():
        assert (tensor - merged[name]).abs().max() < 1e-6, name

    scoring = [sys.executable, "-m", "slime", "eval", str(run.path), "--checkpoint", "5"]
    done = run_within(400, scoring, cwd=tmp_path, env={**os.environ, **of_a_run()})
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((run.path / "eval/step-000005/result.json").read_text())["metrics"]
    [row] = [row for row in run.rows("rl") if row["step"] == 5 and "eval/reward_mean" in row]
    assert result["eval/reward_mean"] == pytest.approx(row["eval/reward_mean"], abs=1e-9)


def test_adapters_of_routed_experts_learn_and_peft_reads_them(tmp_path: Path) -> None:
    """With a model of random weights; adapters on nothing but MLPs, most of which are routed experts."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base, assets = tmp_path / "base", resolve("pkg://slime_plugin_glm4/assets/glm4-moe-tiny")
    write_checkpoint(json.loads((assets / "config.json").read_text()), base)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(assets / name, base)
    settings = settings_of(tmp_path, base) | {
        "train.lora.expert_rank": 4,
        "train.mtp_loss_scale": "null",
        "train.lora.targets": "[gate_proj,up_proj,down_proj]",
        "eval.path": "null",
        "train.checkpoint.interval": "null",
    }
    run = Run(tmp_path, model="glm4-moe-tiny", settings=settings, shortened={}, forked=True).start().succeed()
    require_learning(run)
    merged = AutoModelForCausalLM.from_pretrained(run.path / "export").state_dict()
    before = AutoModelForCausalLM.from_pretrained(base)
    learnt = {name for name, tensor in before.state_dict().items() if not torch.equal(tensor, merged[name])}
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in learnt)
    assert any(name.endswith("mlp.experts.down_proj") for name in learnt)
    assert not any("self_attn" in name or "norm" in name or "embed" in name for name in learnt)
    for name, tensor in PeftModel.from_pretrained(before, run.path / "adapter").merge_and_unload().state_dict().items():
        assert (tensor - merged[name]).abs().max() < 1e-6, name


def test_a_run_learns_through_engines_that_get_adapters(finished: Run, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, finished.path / "export") | {
        "train.lora.publish": "adapters",
        "eval.path": "null",
        "train.checkpoint.interval": "null",
    }
    run = Run(tmp_path, settings=settings, shortened={}, forked=True).start().succeed()
    require_learning(run)
    sizes = [row["publish/num_bytes"] for row in run.rows("rl") if "publish/num_bytes" in row]
    adapters = sum(tensor.nbytes for tensor in load_file(run.path / "adapter/adapter_model.safetensors").values())
    assert set(sizes) == {adapters + 8}, "A, B and their scale; no step sees the version that the run begins with"
    assert 10 * sizes[0] < (finished.path / "export/model.safetensors").stat().st_size
