"""A step that learns from a held teacher's most probable tokens, against two models of transformers in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slime_testing.ranks import Rank, run_ranks

from .one_rank import HF, packed, recorded, start, write_model

COEF, TOP = 0.5, 9

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from slime_testing.models import write_checkpoint

    model, teacher = write_model(tmp_path_factory), tmp_path_factory.mktemp("teacher")
    write_checkpoint(HF, teacher, seed=1)
    return {"model": model, "teacher": teacher}


def taught(rank: Rank, model: Path, teachers: dict[str, Path]) -> dict[str, Any]:
    """By teacher, the metrics of a step."""
    found = {}
    for name, teacher in teachers.items():
        trainer = start(rank, model, name="opd", options={"teacher_coef": COEF, "teacher_top_k": TOP}, advantage="none")
        trainer.cfg.algo.teacher.path = str(teacher)
        trainer.hold_teacher()
        samples = [x.with_columns(advantages=0 * x.columns["advantages"]) for x in recorded(0)]
        found[name] = trainer.train(packed(trainer, samples), 0, "rl")
        assert all(module.top is None for module in trainer.model.modules)
        dist.destroy_process_group()
        rank = rank.again()
    return found


@pytest.fixture(scope="module")
def results(folders: dict[str, Path]) -> dict[str, Any]:
    return run_ranks(taught, 1, folders["model"], folders)[0]


def by_the_formula() -> dict[str, float]:
    """A sample at a time; the rest is added up over the other tokens, not taken from 1."""
    from slime_testing.models import random_model

    student, teacher = random_model(HF).double(), random_model(HF, seed=1).double()
    losses, rests = [], []
    for sample in recorded(0):
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        own, other = (x(tokens[None]).logits[0, -count - 1 : -1].softmax(1) for x in (student, teacher))
        for p, q in zip(own[sample.loss_mask != 0], other[sample.loss_mask != 0].detach(), strict=True):
            order = q.argsort(descending=True)
            events = [torch.stack([*x[order[:TOP]], x[order[TOP:]].sum()]) for x in (p, q)]
            losses.append((events[0] * (events[0] / events[1]).log()).sum())
            rests.append(float(events[0][-1]))
    loss = torch.stack(losses).mean()
    gradients = torch.autograd.grad(COEF * loss, list(student.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    kl = loss.item()
    return {"loss": COEF * kl, "teacher_kl": kl, "teacher_rest": sum(rests) / len(rests), "grad_norm": norm.item()}


def test_a_step_is_that_of_the_formula(results: dict[str, Any]) -> None:
    """fp32 against float64: 2e-6 on means of order 1, 2e-5 relative on the norm."""
    wanted, found = by_the_formula(), results["teacher"]
    assert wanted["teacher_kl"] > 0.01  # it would show if nobody were asked
    for name in ("loss", "teacher_kl", "teacher_rest"):
        assert found[name] == pytest.approx(wanted[name], abs=2e-6), name
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=2e-5)
    assert found["pg_loss"] == 0


def test_a_teacher_like_the_student_teaches_nothing(results: dict[str, Any]) -> None:
    """Its divergence is exactly 0: both passes compute the same log-probs. The gradient is what fp32 leaves of terms
    that cancel."""
    found = results["model"]
    assert found["teacher_kl"] == found["loss"] == 0
    assert found["grad_norm"] < 1e-5 * results["teacher"]["grad_norm"]
