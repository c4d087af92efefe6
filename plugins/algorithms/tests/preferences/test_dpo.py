"""The loss of pairs against the papers' formulas in Python floats, in every layout, and in a run that learns."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.__main__ import main
from slime.compose.compose import examine
from slime.objective import LossInputs
from slime.observe.metrics import read_rows
from slime.types import PREFERENCE
from slime_algorithms.preferences.dpo import REFERENCE, Dpo, Form
from slime_testing.objectives import check_objective

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
LENGTHS = [2, 3, 1, 1]
"""Tokens of the answers of two pairs: chosen, rejected, chosen, rejected."""
ALL = [Dpo(), Dpo(beta=0.5, label_smoothing=0.2), Dpo(beta=0.3, form=Form.identity)]


def inputs_of(reference: Tensor) -> LossInputs:
    def sums(lengths: list[int]) -> Callable[[Tensor], Tensor]:
        sizes = torch.tensor(lengths)
        return lambda x: torch.stack([part.sum() for part in x.split(lengths)]).repeat_interleave(sizes)

    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).repeat_interleave(torch.tensor(LENGTHS))
    pairs = [sum(LENGTHS[:2]), sum(LENGTHS[2:])]
    weights = torch.tensor([1 / (2 * count) for count in pairs], dtype=torch.float64)
    return LossInputs(
        torch.ones_like(signs),
        weights.repeat_interleave(torch.tensor(pairs)),
        {PREFERENCE: signs, REFERENCE: reference},
        sum_by_sequence=sums(LENGTHS),
        sum_by_attempt=sums(pairs),
    )


def by_hand(dpo: Dpo, logprobs: list[float], reference: list[float]) -> tuple[float, list[float]]:
    """The mean loss, and both margins times beta, in Python floats."""
    gains = [new - old for new, old in zip(logprobs, reference, strict=True)]
    margins = [dpo.beta * (sum(gains[:2]) - sum(gains[2:5])), dpo.beta * (gains[5] - gains[6])]

    def loss(margin: float) -> float:
        if dpo.form is Form.identity:
            return (margin / dpo.beta - 1 / (2 * dpo.beta)) ** 2
        right, wrong = 1 / (1 + math.exp(-margin)), 1 / (1 + math.exp(margin))
        return -(1 - dpo.label_smoothing) * math.log(right) - dpo.label_smoothing * math.log(wrong)

    return sum(map(loss, margins)) / 2, margins


@pytest.mark.parametrize("dpo", ALL, ids=lambda dpo: f"{dpo.form.value}-{dpo.beta:g}")
def test_the_loss_is_the_papers_and_its_gradient_that_of_finite_differences(dpo: Dpo) -> None:
    logprobs = torch.tensor([-0.3, -1.2, -0.7, -2.5, -0.1, -0.9, -0.4], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-0.5, -1.0, -0.6, -2.0, -0.4, -0.3, -0.2], dtype=torch.float64)
    terms = dpo.loss(torch.stack([logprobs, torch.zeros_like(logprobs)]), inputs_of(reference))
    expected, margins = by_hand(dpo, logprobs.tolist(), reference.tolist())
    assert terms.loss.item() == pytest.approx(expected, rel=1e-12)
    assert terms.means["margin"].item() == pytest.approx(sum(margins) / 2, rel=1e-12)
    assert [margin > 0 for margin in margins] == [True, False]
    assert terms.means["accuracy"].item() == pytest.approx(0.5, rel=1e-12)
    rewards = terms.means["chosen_reward"] - terms.means["rejected_reward"]
    assert rewards.item() == pytest.approx(sum(margins) / 2, rel=1e-12)
    terms.loss.backward()
    step = 1e-6
    for i in range(len(logprobs)):
        sides = []
        for sign in (step, -step):
            moved = logprobs.detach().clone()
            moved[i] += sign
            sides.append(by_hand(dpo, moved.tolist(), reference.tolist())[0])
        assert logprobs.grad is not None
        assert logprobs.grad[i].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-8)


@pytest.mark.parametrize(("options", "says"), [({"beta": 0}, "above 0"), ({"label_smoothing": 0.5}, "below 0.5")])
def test_options_that_cannot_be(options: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Dpo(**options)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_contract() -> None:
    """With the paper's beta. A margin is beta times a sum over all tokens of two answers. At 0.5 it is rounded by more
    than means over tokens are allowed, on some processors."""
    check_objective("dpo", MODEL, options={"beta": 0.1})


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_plan_reads_pairs_and_names_what_is_wrong_with_a_row(tmp_path: Path) -> None:
    user = {"role": "user", "content": "1+2="}
    text = {"prompt": [user], "chosen": "3", "rejected": "4"}
    lists = {
        "chosen": [user, {"role": "assistant", "content": "3"}],
        "rejected": [user, {"role": "assistant", "content": "4"}],
    }
    words = ["+model=glm4-tiny", "+cluster=local", "algo=dpo", "sft.num_steps=2", "sft.lr_warmup_steps=0"]

    def said(*rows: dict[str, object]) -> list[str]:
        file = written(tmp_path / "pairs.jsonl", [*rows])
        return [str(problem) for problem in examine([*words, f"sft.path={file}"]).problems]

    assert said(text, lists) == []
    [problem] = said(text, {**text, "rejected": "3"})
    assert "2: 'chosen' and 'rejected' are the same" in problem
    other = {**lists, "rejected": [{"role": "user", "content": "9-9="}, {"role": "assistant", "content": "4"}]}
    [problem] = said(other)
    assert "differ before their last message" in problem
    [problem] = said({"prompt": [user], "chosen": "3"})
    assert "the row has no key 'rejected'" in problem
    assert any("algo.loss_mean" in problem for problem in examine_with(words, text, tmp_path, "algo.loss_mean=sample"))


def examine_with(words: list[str], row: dict[str, object], folder: Path, *more: str) -> list[str]:
    file = written(folder / "pairs.jsonl", [row])
    return [str(problem) for problem in examine([*words, f"sft.path={file}", *more]).problems]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_learns_to_prefer_what_was_chosen(tmp_path: Path) -> None:
    """Two ranks, packs of several pairs, and a run that was resumed in its middle."""
    rows = []
    for a in range(5):
        for b in range(5):
            rows.append({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)})
    pairs = written(tmp_path / "pairs.jsonl", rows)
    words = [
        "+model=glm4-tiny",
        "+cluster=local2",
        "algo=dpo",
        f"sft.path={pairs}",
        "sft.batch_size=25",
        "eval.path=null",
    ]
    words += [
        "sft.lr=1e-3",
        "sft.lr_warmup_steps=0",
        "sft.lr_decay=constant",
        f"run.dir={tmp_path}",
        "run.name=prefers",
        "train.max_tokens_per_micro_batch=128",
    ]
    words += ["train.checkpoint.interval=6", "run.progress=false", "sft.num_steps=12"]
    assert main(words) == 0
    before = _losses(tmp_path)
    assert before[0] == pytest.approx(math.log(2), abs=1e-6), "the policy is its own reference at first"
    last = _rows(tmp_path)[-1]
    assert last["train/accuracy"] > 0.9
    assert last["train/margin"] > 1
    shutil.rmtree(tmp_path / "prefers" / "checkpoints" / "step-000012")
    assert main(words) == 0
    assert _losses(tmp_path) == before, "from the checkpoint of step 6, with its reference, bit for bit"


def _rows(folder: Path) -> Sequence[Mapping[str, Any]]:
    return list(read_rows(folder / "prefers" / "metrics.jsonl"))


def _losses(folder: Path) -> list[float]:
    rows = {row["step"]: row["train/loss"] for row in _rows(folder)}
    assert list(rows) == [*range(1, 13)]
    return list(rows.values())
