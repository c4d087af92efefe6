"""The divergence over a teacher's most probable tokens against its formula in Python floats, and in every layout."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.stages import Stage, objective_of
from slime.compose.compose import examine
from slime.config.changes import changed
from slime.config.schema import AlgoConfig, LossMean, SlimeConfig
from slime.objective import LossInputs, LossTerms, Source
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS
from slime_algorithms.distillation.divergence import LEAST_REST, top_divergence
from slime_algorithms.distillation.opd import TEACHER_LOGPROBS, TOP_IDS, TOP_LOGPROBS, Opd
from slime_testing.models import write_checkpoint
from slime_testing.objectives import check_objective
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"
PREDICTING = Path(__file__).parents[3] / "models/glm4/tests/configs/lite.json"
"""A model with a layer that predicts the token after the next one."""
COEF, NUM = 0.7, 7
LOGITS = (0.3, -1.2, 2.0, 0.0, -0.5, 1.1, -2.5)
TEACHER = (1.0, 0.2, -0.3, 0.0, 0.4, 2.1, -4.0)
REWARDS = (1.0, 0.0, -0.7, 0.2, 0.0, 3.0, -1.0)
EXACT = {"rtol": 1e-12, "atol": 1e-14}  # float64 on both sides; some roundings apart


def opd(**options: Any) -> Opd:
    found = objective_of(AlgoConfig(name="opd", advantage="none", options={"teacher_coef": COEF, **options}))
    assert isinstance(found, Opd)
    return found


def softmax(logits: tuple[float, ...] | list[float]) -> list[float]:
    total = math.fsum(math.exp(x) for x in logits)
    return [math.exp(x) / total for x in logits]


def top(k: int) -> list[int]:
    """The teacher's k most probable outcomes."""
    return sorted(range(NUM), key=lambda outcome: -TEACHER[outcome])[:k]


def by_hand(logits: tuple[float, ...] | list[float], k: int) -> float:
    """The divergence of the formula, with the events written out."""
    student, teacher = softmax(logits), softmax(TEACHER)
    events = [[outcome] for outcome in top(k)] + [[outcome for outcome in range(NUM) if outcome not in top(k)]]
    masses = [[math.fsum(each[outcome] for outcome in event) for each in (student, teacher)] for event in events]
    return math.fsum(p * math.log(p / q) for p, q in masses if p > 0)


def of_teacher(k: int) -> Tensor:
    return torch.tensor(TEACHER, dtype=torch.float64).log_softmax(0)[top(k)]


def loss_at(logits: Tensor, k: int, *, outcome: int = 0, reward: float = 0.0, old: Tensor | None = None) -> LossTerms:
    """Of one place with these logits, where `outcome` was sampled from `old`."""
    logprobs = logits.log_softmax(0)
    old = logprobs.detach() if old is None else old
    one = torch.ones(1, dtype=torch.float64)
    columns = {ADVANTAGES: reward * one, ROLLOUT_LOGPROBS: old[[outcome]], "old_logprobs": old[[outcome]]}
    columns |= {TOP_IDS: torch.tensor([top(k)]), TOP_LOGPROBS: of_teacher(k)[None]}
    own = {TOP_IDS: logprobs[top(k)][None]}
    scores = torch.stack([logprobs[[outcome]], 0 * one])
    inputs = LossInputs(one, one, columns, sum_by_sequence=lambda x: x, logprobs_of=own)
    return opd(teacher_top_k=k).loss(scores, inputs)


@pytest.mark.parametrize("k", range(1, NUM + 1))
def test_the_loss_is_that_of_the_formula(k: int) -> None:
    terms = loss_at(torch.tensor(LOGITS, dtype=torch.float64), k)
    assert float(terms.loss) == pytest.approx(COEF * by_hand(LOGITS, k), rel=1e-12)
    assert float(terms.token_sums["teacher_kl"]) == pytest.approx(by_hand(LOGITS, k), rel=1e-12)
    rest = 1 - math.fsum(softmax(LOGITS)[outcome] for outcome in top(k))
    assert float(terms.token_sums["teacher_rest"]) == pytest.approx(rest, abs=1e-15)
    named = opd(teacher_top_k=k).metrics([ADVANTAGES, ROLLOUT_LOGPROBS, "old_logprobs"])
    assert {*terms.token_sums} == {*named.token_sums}


@pytest.mark.parametrize("k", range(1, NUM + 1))
def test_the_gradient_is_that_of_finite_differences(k: int) -> None:
    logits, step = torch.tensor(LOGITS, dtype=torch.float64).requires_grad_(), 1e-6
    (found,) = torch.autograd.grad(loss_at(logits, k).loss, logits)
    for outcome in range(NUM):
        moved = [[x + sign * step * (i == outcome) for i, x in enumerate(LOGITS)] for sign in (1, -1)]
        wanted = COEF * (by_hand(moved[0], k) - by_hand(moved[1], k)) / (2 * step)
        assert float(found[outcome]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_more_tokens_say_more_and_all_of_them_everything() -> None:
    found = [by_hand(LOGITS, k) for k in range(1, NUM + 1)]
    assert all(less < more for less, more in itertools.pairwise(found[:-1]))
    student, teacher = softmax(LOGITS), softmax(TEACHER)
    whole = math.fsum(p * math.log(p / q) for p, q in zip(student, teacher, strict=True))
    for k in (NUM - 1, NUM):  # what is left over is one outcome, or none
        assert float(loss_at(torch.tensor(LOGITS, dtype=torch.float64), k).loss) == pytest.approx(
            COEF * whole, rel=1e-9
        )


@pytest.mark.parametrize("moved", [0.0, 0.05], ids=["on policy", "after an optimizer step"])
def test_over_all_tokens_it_is_what_the_sampled_token_has_in_expectation(moved: float) -> None:
    """Over seven outcomes, exactly, beside rewards: the objective without `teacher_top_k` needs samples for the
    gradient that this one has at each of them."""
    logits = torch.tensor(LOGITS, dtype=torch.float64).requires_grad_()
    old = (logits.detach() + moved * torch.tensor([1, -0.6, 0.4, 0, 0.8, -1, 0.2])).log_softmax(0)
    teacher = torch.tensor(TEACHER, dtype=torch.float64).log_softmax(0)
    one, found, wanted = torch.ones(1, dtype=torch.float64), torch.zeros(NUM).double(), torch.zeros(NUM).double()
    for outcome, reward in enumerate(REWARDS):
        terms = loss_at(logits, NUM, outcome=outcome, reward=reward, old=old)
        found += old[outcome].exp() * torch.autograd.grad(terms.loss, logits)[0]
        logprobs = logits.log_softmax(0)
        columns = {ADVANTAGES: reward * one, ROLLOUT_LOGPROBS: old[[outcome]], "old_logprobs": old[[outcome]]}
        columns[TEACHER_LOGPROBS] = teacher[[outcome]]
        scores = torch.stack([logprobs[[outcome]], 0 * one])
        sampled = opd().loss(scores, LossInputs(one, one, columns, sum_by_sequence=lambda x: x))
        wanted += old[outcome].exp() * torch.autograd.grad(sampled.loss, logits)[0]
    torch.testing.assert_close(found, wanted, **EXACT)


def test_a_teacher_that_agrees_teaches_nothing() -> None:
    logprobs = torch.tensor(TEACHER, dtype=torch.float32).log_softmax(0)[None, top(3)].requires_grad_()
    kl, rest = top_divergence(logprobs, logprobs.detach().clone())
    assert kl.item() == 0
    assert 0 < rest.item() < 1
    logits = torch.tensor(TEACHER, dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_at(logits, 3).loss, logits)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-15)


def test_a_rest_without_probability_is_finite() -> None:
    """In fp32 a sum of probabilities may be 1, or more: on the teacher's side, on the model's, and on both."""
    sharp, flat = (torch.tensor(x).log_softmax(0)[None] for x in ([30.0, 0.0, -5.0], [1.0, 0.0, 2.0]))
    for student, teacher in itertools.product((sharp, flat), repeat=2):
        own = student[:, :2].clone().requires_grad_()
        kl, rest = top_divergence(own, teacher[:, :2])
        (gradient,) = torch.autograd.grad(kl.sum(), own)
        assert gradient.isfinite().all()
        p, q = (max(1 - float(x[0, :2].double().exp().sum()), LEAST_REST) for x in (student, teacher))
        known = float((student.exp() * (student - teacher))[0, :2].sum())
        assert kl.item() == pytest.approx(known + rest.item() * math.log(p / q), rel=1e-4, abs=1e-6)


def test_who_makes_the_columns() -> None:
    for options, source in (({}, Source.teacher), ({"teacher_url": "http://teacher"}, Source.rollout)):
        objective = opd(teacher_top_k=5, **options)
        asked = [column for column in objective.needs if column.width]
        assert [(x.name, x.source, x.width, x.ids) for x in asked] == [
            (TOP_IDS, source, 5, True),
            (TOP_LOGPROBS, source, 5, False),
        ]
        assert TEACHER_LOGPROBS not in [column.name for column in objective.needs]
        assert (Source.teacher in Stage("rl", objective, num_steps=1).passes(1)) is not objective.is_served


def test_a_number_that_no_vocabulary_has_is_refused() -> None:
    def said(k: int) -> list[str]:
        words = ["algo=opd", "algo.options.teacher_url=http://127.0.0.1:30000", f"algo.options.teacher_top_k={k}"]
        return [str(problem) for problem in examine(["+model=glm4-tiny", "+cluster=local", *words]).problems]

    assert said(8) == []
    [line] = said(10**6)
    assert line.startswith("algo.options.teacher_top_k: the vocabulary has ")
    [line] = said(0)
    assert "teacher_top_k must be 1 or more" in line


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("served", [False, True], ids=["held", "served"])
def test_contract(served: bool) -> None:
    options: dict[str, Any] = {"teacher_coef": 0.5, "teacher_top_k": 6}
    if served:
        options["teacher_url"] = "http://nobody-is-asked"
    check_objective("opd", MODEL, options=options, kl_coef=0.1)


def with_a_prediction_layer(rank: Rank, folder: Path, learns_by: str) -> list[dict[str, float]]:
    """A step with the sampled token alone, and one with the most probable tokens."""
    found = []
    for options in ({}, {"teacher_top_k": 5}):
        from slime.train.packing import pack
        from slime_megatron.train.trainer import Trainer

        cfg = SlimeConfig(algo=AlgoConfig(name="opd", advantage="none", options=options))
        cfg.model.path, cfg.run.num_steps = str(folder), 1
        cfg.model.family = json.loads((folder / "config.json").read_text())["model_type"]
        cfg = changed(cfg, {learns_by: 0.2})
        cfg.algo.teacher.path = str(folder)
        trainer = Trainer(cfg, *rank)
        trainer.init_weights()
        trainer.hold_teacher()
        batches = pack(
            recorded_samples(4, trainer.hf["vocab_size"]), num_dp=1, align=1, max_tokens=80, loss_mean=LossMean.token
        )
        found.append(trainer.train(batches, 1, "rl"))
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


@pytest.mark.slow
def test_a_prediction_layer_learns_beside_it(tmp_path: Path) -> None:
    """Its row of scores stands behind those of the teacher's tokens."""
    prediction = pytest.importorskip("slime_megatron.multi_token_prediction")
    write_checkpoint(json.loads(PREDICTING.read_text()), tmp_path)
    [[sampled, top]] = run_ranks(with_a_prediction_layer, 1, tmp_path, prediction.LEARNS_BY)
    assert top["mtp_loss"] == sampled["mtp_loss"] > 1
    assert (top["teacher_kl"], sampled["teacher_kl"]) == (0, 0)
