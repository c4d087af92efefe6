"""The loss of a reward model in Python floats and in every layout, and a run whose export transformers reads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from slime.__main__ import main
from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.models.mapping import WeightMapping
from slime.objective import LossInputs
from slime.observe.metrics import read_rows
from slime.plugins import load
from slime.types import PREFERENCE, TrainSample
from slime_algorithms.preferences.reward_model import IS_LAST, RewardModel
from slime_testing.objectives import check_objective

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
LENGTHS = [2, 3, 1, 2]
"""Tokens of the answers of two pairs: chosen, rejected, chosen, rejected."""
LASTS = [1, 4, 5, 7]


def inputs() -> LossInputs:
    def sums(lengths: list[int]) -> Callable[[Tensor], Tensor]:
        sizes = torch.tensor(lengths)
        return lambda x: torch.stack([part.sum() for part in x.split(lengths)]).repeat_interleave(sizes)

    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).repeat_interleave(torch.tensor(LENGTHS))
    last = torch.zeros_like(signs).index_fill(0, torch.tensor(LASTS), 1.0)
    pairs = [sum(LENGTHS[:2]), sum(LENGTHS[2:])]
    weights = torch.tensor([1 / (2 * count) for count in pairs], dtype=torch.float64)
    return LossInputs(
        torch.ones_like(signs),
        weights.repeat_interleave(torch.tensor(pairs)),
        {PREFERENCE: signs, IS_LAST: last},
        sum_by_sequence=sums(LENGTHS),
        sum_by_attempt=sums(pairs),
    )


def by_hand(model: RewardModel, numbers: list[float]) -> float:
    pairs = [(numbers[1], numbers[4]), (numbers[5], numbers[7])]
    losses = [math.log1p(math.exp(bad - good)) + model.center * (good + bad) ** 2 for good, bad in pairs]
    return sum(losses) / 2


@pytest.mark.parametrize("model", [RewardModel(), RewardModel(center=0.1)], ids=["plain", "centred"])
def test_the_loss_is_the_papers_and_its_gradient_that_of_finite_differences(model: RewardModel) -> None:
    scores = torch.tensor([0.3, 1.2, -0.7, 0.5, -0.1, 0.9, -0.4, 1.4], dtype=torch.float64, requires_grad=True)
    terms = model.loss(scores[None], inputs())
    assert terms.loss.item() == pytest.approx(by_hand(model, scores.tolist()), rel=1e-12)
    means = {name: value.item() for name, value in terms.means.items()}
    wanted = {"accuracy": 0.5, "margin": (1.3 - 0.5) / 2, "chosen_reward": 1.05, "rejected_reward": 0.65}
    assert {name: means[name] for name in wanted} == pytest.approx(wanted, rel=1e-12)
    terms.loss.backward()
    step = 1e-6
    for i in range(len(scores)):
        sides = []
        for sign in (step, -step):
            moved = scores.detach().clone()
            moved[i] += sign
            sides.append(by_hand(model, moved.tolist()))
        assert scores.grad is not None
        assert scores.grad[i].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-8)
    assert [i for i, slope in enumerate(scores.grad.tolist()) if slope] == LASTS


def test_a_reward_stands_at_the_last_token_of_an_answer() -> None:
    sample = TrainSample(np.arange(6), np.ones(4, np.float32))
    [made] = RewardModel().make_columns([sample])
    assert made.columns[IS_LAST].tolist() == [0, 0, 0, 1]


def test_a_mean_of_rewards_is_pulled_to_zero_and_not_away() -> None:
    with pytest.raises(ValueError, match="center must be 0 or more"):
        RewardModel(center=-0.1)


@pytest.mark.parametrize("folder", ["glm4-tiny", "glm4-moe-tiny"])
def test_the_head_stands_for_the_output_layer(folder: str) -> None:
    hf = json.loads((resolve(f"pkg://slime_plugin_glm4/assets/{folder}") / "config.json").read_text())
    before: WeightMapping = load().models.create(hf["model_type"]).weight_mapping(hf)
    after = RewardModel().mapping(before)
    assert after.by_megatron_name["output_layer.weight"].hf == ("score.weight",)
    assert after.optional_names == {"score.weight"}
    assert before.hf_names <= after.hf_names | after.ignored
    assert not after.draft_names
    assert "num_nextn_predict_layers" not in hf or not RewardModel().exported(hf)["num_nextn_predict_layers"]


def test_a_copy_of_tied_embeddings_is_left_out_with_the_output_layer() -> None:
    hf = json.loads((resolve(MODEL) / "config.json").read_text()) | {"tie_word_embeddings": True}
    before: WeightMapping = load().models.create(hf["model_type"]).weight_mapping(hf)
    after = RewardModel().mapping(before)
    assert before.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert not after.tied
    assert after.ignored == {"lm_head.weight"}


@pytest.mark.parametrize(("pad", "ends", "kept"), [(0, 0, None), (0, [3, 0], None), (0, [3, 4], 0), (None, 0, None)])
def test_the_end_token_is_never_taken_for_padding(pad: int | None, ends: int | list[int], kept: int | None) -> None:
    config = {"architectures": ["Glm4ForCausalLM"], "pad_token_id": pad, "eos_token_id": ends}
    exported = RewardModel().exported(config)
    assert exported["architectures"] == ["Glm4ForSequenceClassification"]
    assert exported["pad_token_id"] == kept
    assert exported["slime_scored_at"] == "end_token"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_contract() -> None:
    check_objective("reward_model", MODEL, options={"center": 0.1})


def written(path: Path, numbers: range) -> Path:
    rows = [
        {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1 + a % 2)}
        for a in numbers
        for b in range(5)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def words(folder: Path) -> list[str]:
    return [
        "+model=glm4-tiny",
        "+cluster=local2",
        "algo=reward_model",
        "eval.path=null",
        f"sft.path={written(folder / 'pairs.jsonl', range(5))}",
        "sft.batch_size=25",
        "sft.num_steps=12",
        "sft.lr=1e-3",
        "sft.lr_warmup_steps=0",
        "sft.lr_decay=constant",
        f"run.dir={folder}",
        "run.name=rewards",
        "run.progress=false",
        "train.max_tokens_per_micro_batch=128",
        "train.checkpoint.interval=6",
    ]


def test_what_only_a_model_of_next_tokens_can_do_is_refused(tmp_path: Path) -> None:
    given = words(tmp_path)
    assert [str(problem) for problem in examine(given).problems] == []
    held_out = "eval.path=pkg://slime_rewards.math/data/arithmetic-test.jsonl"
    found = [str(problem) for problem in examine([*given, held_out, "train.lora.rank=4"]).problems]
    assert any("eval.path: the model of algo=reward_model predicts no tokens" in line for line in found)
    assert any("adapters: the model of algo=reward_model trains whole" in line for line in found)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_learns_to_tell_them_apart_and_transformers_reads_its_rewards(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    held_out = written(tmp_path / "held-out.jsonl", range(3))
    assert main([*words(tmp_path), f"sft.eval_path={held_out}"]) == 0
    rows = list(read_rows(tmp_path / "rewards" / "metrics.jsonl"))
    measured = {row["step"]: row for row in rows if "eval/accuracy" in row}
    assert sorted(measured) == [0, 6, 12]
    assert measured[0]["eval/loss"] == pytest.approx(math.log(2), abs=1e-6), "the head begins at zero"
    assert measured[12]["eval/accuracy"] > 0.9
    export = tmp_path / "rewards" / "export"
    model = AutoModelForSequenceClassification.from_pretrained(export, dtype=torch.float32)
    assert model.config.num_labels == 1
    tokenizer = AutoTokenizer.from_pretrained(export)
    right = 0.0
    margins = []
    for line in held_out.read_text().splitlines():
        row = json.loads(line)
        rewards = []
        for answer in (row["chosen"], row["rejected"]):
            messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": answer}]
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            ids = ids if ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]
            with torch.no_grad():
                rewards.append(model(torch.tensor([ids])).logits.item())
        margins.append(rewards[0] - rewards[1])
        right += margins[-1] > 0
    assert right / len(margins) == pytest.approx(measured[12]["eval/accuracy"])
    assert sum(margins) / len(margins) == pytest.approx(measured[12]["eval/margin"], rel=1e-3)
