"""A teacher that the trainers hold: what it says of tokens, that it leaves the model alone, and exact resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from slime.errors import SlimeError
from slime_testing.ranks import Rank, run_ranks

from .one_rank import HF, packed, recorded, start, write_model

COEF = 0.5

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("teacher")
    write_checkpoint(HF, folder, seed=1)
    return folder


def again(rank: Rank) -> Rank:
    """For another trainer in this process."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return rank.again()


def with_teacher(rank: Rank, model: Path, teacher: Path, **algo: Any) -> Any:
    trainer = start(rank, model, name="opd", options={"teacher_coef": COEF}, **algo)
    trainer.cfg.algo.teacher.path = str(teacher)
    return trainer


def step(trainer: Any, number: int, *, steps: int = 1) -> dict[str, float]:
    values = trainer.train(packed(trainer, recorded(number), steps=steps), number, "rl")
    return {name: value for name, value in values.items() if not name.startswith("seconds/")}


def weights_of(trainer: Any) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in trainer.export()}


def taught(rank: Rank, model: Path, teacher: Path, saved: Path) -> dict[str, Any]:
    """Everything about one rank: processes are dear, trainers are not."""
    found: dict[str, Any] = {}
    for scored in (teacher, model):
        trainer = with_teacher(rank, model, scored)
        before = weights_of(trainer)
        trainer.hold_teacher()
        found["untouched", scored] = weights_of(trainer) == before
        trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the loss alone
        found["first", scored] = step(trainer, 0)
        found["gradients", scored] = gradients(trainer)
        found["still untouched", scored] = weights_of(trainer) == before
        rank = again(rank)
    trainer = start(rank, model)
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)
    found["grpo"], found["gradients of grpo"] = step(trainer, 0), gradients(trainer)
    rank = again(rank)
    trainer = with_teacher(rank, model, teacher)
    trainer.hold_teacher()
    step(trainer, 0, steps=2)
    trainer.save(saved)
    found["went on"] = step(trainer, 1, steps=2), weights_of(trainer)
    rank = again(rank)
    trainer = with_teacher(rank, model, teacher)
    trainer.load(saved)
    trainer.hold_teacher()
    found["resumed"] = step(trainer, 1, steps=2), weights_of(trainer)
    return found


def gradients(trainer: Any) -> dict[str, bytes]:
    parameters = trainer.model.modules[0].named_parameters()
    return {name: parameter.main_grad.clone().numpy().tobytes() for name, parameter in parameters}


@pytest.fixture(scope="module")
def results(model: Path, teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    return run_ranks(taught, 1, model, teacher, tmp_path_factory.mktemp("saved"))[0]


def by_the_formula() -> dict[str, float]:
    """Two models of transformers in float64, a sample at a time: the only step of a rollout, where the ratio is 1."""
    from slime_testing.models import random_model

    student, teacher = random_model(HF).double(), random_model(HF, seed=1).double()
    losses, gaps = [], []
    for sample in recorded(0):
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens

        def logprobs(model: Any, tokens: Any = tokens, count: int = count) -> Any:
            rows = model(tokens[None]).logits[0, -count - 1 : -1].log_softmax(1)
            return rows.gather(1, tokens[-count:, None])[:, 0]

        own, other = logprobs(student), logprobs(teacher).detach()
        for t in range(count):
            if sample.loss_mask[t]:
                gaps.append(float(own[t].detach() - other[t]))
                judged = float(sample.columns["advantages"][t]) - COEF * gaps[-1]
                losses.append(-(own[t] - own[t].detach()).exp() * judged)
    loss = torch.stack(losses).mean()
    found = torch.autograd.grad(loss, list(student.parameters()))
    norm = torch.stack([gradient.norm() for gradient in found]).norm()
    return {"pg_loss": loss.item(), "teacher_kl": sum(gaps) / len(gaps), "grad_norm": norm.item()}


def test_a_step_is_that_of_the_formula(results: dict[Any, Any], teacher: Path) -> None:
    """fp32 against float64: 1e-6 on means of order 1, 1e-5 relative on the norm."""
    wanted, found = by_the_formula(), results["first", teacher]
    norm = (
        sum(
            float(torch.frombuffer(bytearray(each), dtype=torch.float32).double().square().sum())
            for each in results["gradients", teacher].values()
        )
        ** 0.5
    )
    assert abs(wanted["teacher_kl"]) > 0.01  # it would show if nobody were asked
    assert found["pg_loss"] == pytest.approx(wanted["pg_loss"], abs=2e-6)
    assert found["teacher_kl"] == pytest.approx(wanted["teacher_kl"], abs=2e-6)
    assert norm == pytest.approx(wanted["grad_norm"], rel=2e-5)


def test_a_teacher_like_the_student_adds_exactly_nothing_at_first(results: dict[Any, Any], model: Path) -> None:
    first = results["first", model]
    assert first.pop("teacher_kl") == 0
    assert first == results["grpo"]
    assert results["gradients", model] == results["gradients of grpo"]


def test_holding_and_asking_it_leaves_the_weights_as_they_are(
    results: dict[Any, Any], model: Path, teacher: Path
) -> None:
    assert [results[what, of] for of in (model, teacher) for what in ("untouched", "still untouched")] == [True] * 4


def test_a_resume_is_exact_and_the_checkpoint_has_no_teacher(results: dict[Any, Any]) -> None:
    assert results["resumed"] == results["went on"]


def of_checkpoint(rank: Rank, model: Path, teacher: Path, saved: Path, exported: Path) -> list[dict[str, float]]:
    """The same weights, those of a run after a step, as an HF folder and as a checkpoint."""
    trainer = start(rank, teacher)
    step(trainer, 5)
    trainer.save(saved)
    save_file(dict(trainer.export()), exported / "model.safetensors")
    (exported / "config.json").write_text(json.dumps(trainer.hf))
    found = []
    for folder in (exported, saved):
        rank = again(rank)
        trainer = with_teacher(rank, model, folder)
        trainer.hold_teacher()
        found.append(step(trainer, 0))
    return found


def test_a_checkpoint_is_a_teacher_too(model: Path, teacher: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("saved", "exported")]
    for folder in folders:
        folder.mkdir()
    from_folder, from_checkpoint = run_ranks(of_checkpoint, 1, model, teacher, *folders)[0]
    assert from_checkpoint == from_folder


def refused(rank: Rank, model: Path, *teachers: Path) -> list[str]:
    trainer, found = start(rank, model, name="opd"), []
    for teacher in teachers:
        trainer.cfg.algo.teacher.path = str(teacher)
        with pytest.raises(SlimeError) as error:
            trainer.hold_teacher()
        found.append(str(error.value))
    return found


def test_what_cannot_be_loaded_is_named_under_its_key(model: Path, tmp_path: Path) -> None:
    from slime_testing.models import write_checkpoint

    write_checkpoint({**HF, "intermediate_size": 64}, tmp_path / "wider")
    (tmp_path / "empty").mkdir()
    wider, empty = run_ranks(refused, 1, model, tmp_path / "wider", tmp_path / "empty")[0]
    assert wider.startswith(f"algo.teacher.path, {tmp_path}/wider")
    assert "has shape" in wider
    assert empty.startswith(f"algo.teacher.path, {tmp_path}/empty")
