"""The trainer on one rank, with the real tiny dense family: learning, the log-prob passes, errors."""

from __future__ import annotations

import gc
import math
import tempfile
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from slime.errors import SlimeError
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.sharing import GROUP, NUM_GROUPS, of_tries

from .one_rank import HF, packed, recorded, start, with_transformers_logprobs, write_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


@pytest.fixture(scope="module")
def results(model: Path) -> dict[str, Any]:
    """What every scenario below returned; all in one process, because a process takes seconds to start."""
    return run_ranks(run_scenarios, 1, model)[0]


def run_scenarios(rank: Rank, model: Path) -> dict[str, Any]:
    found = {}
    for name, scenario in SCENARIOS.items():
        found[name] = scenario(rank.again(), model)
        dist.destroy_process_group()
    return found


def supervised_losses(rank: Rank, model: Path) -> list[float]:
    trainer = start(rank, model)
    (batch,) = packed(trainer, recorded())
    return [trainer.train([batch], step, "sft")["loss"] for step in range(30)]


def test_supervised_training_learns_its_samples(results: dict[str, Any]) -> None:
    losses = results["supervised"]
    assert losses[0] == pytest.approx(math.log(HF["vocab_size"]), abs=1.5)  # a random model knows nothing
    assert losses[-1] < losses[0] - 1


def made_again(rank: Rank, model: Path) -> tuple[list[list[float]], list[bool]]:
    """Losses of two trainers, the second in the place of the first, and whether parts of the first are still there."""
    losses, parts = [], []
    for _ in range(2):
        trainer = start(rank.again(), model)
        (batch,) = packed(trainer, recorded())
        losses.append([trainer.train([batch], step, "sft")["loss"] for step in range(3)])
        saved = Path(tempfile.mkdtemp(dir=model.parent))
        trainer.begin_save(saved).wait()
        parts.append([weakref.ref(trainer.model.modules[0]), weakref.ref(trainer.optimizer)])
        del trainer
        gc.collect()
    return losses, [part() is not None for part in parts[0]]


def test_a_trainer_that_is_made_again_learns_the_same_and_keeps_nothing_of_the_first(results: dict[str, Any]) -> None:
    (first, second), are_there = results["again"]
    assert first == second
    assert are_there == [False, False]


def losses_by_packing(rank: Rank, model: Path, loss_mean: str) -> list[dict[str, float]]:
    from slime.config.schema import LossMean

    trainer = start(rank, model, loss_mean=LossMean(loss_mean), rollout_logprobs_as_old=True)
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay, only the packing changes
    return [trainer.train(packed(trainer, recorded(), max_tokens=cap), 0, "rl") for cap in (40, 100, 1000)]


@pytest.mark.parametrize("loss_mean", ["token", "sample"])
def test_the_loss_does_not_depend_on_the_packing(results: dict[str, Any], loss_mean: str) -> None:
    by_cap = results[f"packing by {loss_mean}"]
    measured = ("clip_low_fraction", "clip_high_fraction", "ratio_mean", "approx_kl", "logprob_diff_mean", "engine_kl")
    for name in ("loss", "pg_loss", "entropy", "clip_fraction", *measured):
        assert [found[name] for found in by_cap] == pytest.approx([by_cap[0][name]] * 3, rel=1e-6), name
    low, high = by_cap[0]["clip_low_fraction"], by_cap[0]["clip_high_fraction"]
    assert low > 0 < high  # the recorded ratios do spread
    assert low + high == pytest.approx(by_cap[0]["clip_fraction"], rel=1e-12)


def of_what_is_left(rank: Rank, model: Path) -> list[dict[str, float]]:
    """In one optimizer step: samples of which every third is rejected, in many micro-batches and in one; and the others
    alone."""
    from slime.config.schema import ImportanceTokens

    trainer = start(rank, model, rejected_in_mean=False, sequence_bound=1e5, importance_tokens=ImportanceTokens.all)
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay
    far = [x.with_columns(rollout_logprobs=x.columns["rollout_logprobs"] - 50.0) for x in recorded()]
    samples = [one if number % 3 else other for number, (one, other) in enumerate(zip(recorded(), far, strict=True))]
    left = [one for number, one in enumerate(recorded()) if number % 3]
    tried = ((samples, 40), (samples, 1000), (left, 1000))
    return [trainer.train(packed(trainer, found, max_tokens=cap), 0, "rl") for found, cap in tried]


def test_a_step_over_what_is_left_is_one_without_the_rejected(results: dict[str, Any]) -> None:
    many, one, alone = results["what is left"]
    assert many["rejected_share"] > 0.2
    assert alone["rejected_share"] == 0
    for found in (one, alone):
        assert found["pg_loss"] == pytest.approx(many["pg_loss"], rel=1e-5)  # fp32 sums in another order
    assert "seconds/logprobs" in one, "old log-probs take a pass"


def by_sharing(rank: Rank, model: Path) -> list[tuple[dict[str, float], Any]]:
    """Metrics and gradients of groups of attempts with one prompt, each segment whole, and behind what it shares."""
    trainer = start(rank, model, kl_coef=0.1, entropy_coef=0.01)
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay, only the packing changes
    groups = of_tries(recorded_samples(NUM_GROUPS * GROUP, HF["vocab_size"]))
    samples = with_own_logprobs(trainer, [sample for group in groups for sample in group])
    found = []
    for shared in (False, True):
        batches = packed(trainer, samples, share_below=float(shared))
        assert any(micro.prefixes is not None for micro in batches[0].micro_batches[0]) is shared
        values = trainer.train(batches, 0, "rl")
        found.append((values, [x.grad_data.clone() for chunk in trainer.model.chunks for x in chunk.buffers]))
    return found


def test_shared_prompts_change_neither_metrics_nor_gradients(results: dict[str, Any]) -> None:
    (whole, wanted), (shared, gradients) = results["shared prompts"]
    for name in [name for name in whole if not name.startswith("seconds/")]:
        assert shared[name] == pytest.approx(whole[name], rel=1e-6, abs=1e-6), name  # fp32, means of about 1
    assert shared["logprob_diff_max"] < 1e-5  # to those of whole sequences
    for got, gradient in zip(gradients, wanted, strict=True):
        assert (got - gradient).norm() < 2e-6 * gradient.norm()  # fp32: sums of some hundred terms in another order


def reinforced(rank: Rank, model: Path, num_steps: int, **algo: Any) -> list[dict[str, float]]:
    trainer = start(rank, model, **algo)
    samples = with_own_logprobs(trainer, recorded())
    return [trainer.train(packed(trainer, samples, steps=num_steps), step, "rl") for step in range(3)]


def with_own_logprobs(trainer: Any, samples: list[Any]) -> list[Any]:
    """The samples as an engine would have recorded them that holds exactly the trainer's weights."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.step import score

    (batch,) = packed(trainer, samples)
    with cpu_stands_in_for_cuda():
        scores = score(trainer.model, local_micro_batches(batch, trainer.device))
    found = list(samples)
    for micro, (logprobs, _) in zip(batch.micro_batches[0], scores, strict=True):
        for number, start_, end in zip(micro.sample_ids, micro.cu_seqlens, micro.cu_seqlens[1:], strict=False):
            own = logprobs[start_ : end - 1][-samples[number].num_response_tokens :].numpy()
            found[number] = samples[number].with_columns(rollout_logprobs=own)
    return found


def test_one_step_needs_no_pass_for_old_logprobs_and_starts_on_policy(results: dict[str, Any]) -> None:
    first, second, _ = results["one step"]
    assert first["ratio_mean"] == 1
    assert first["clip_fraction"] == first["approx_kl"] == first["stale_share"] == 0
    assert first["logprob_diff_max"] < 1e-5  # the same weights; only the packing differs, fp32
    assert abs(first["engine_kl"]) < 1e-9
    assert not {"kl", "importance_ratio_mean", "importance_ratio_max"} & first.keys()  # there was nothing to measure
    assert second["logprob_diff_mean"] > 1e-4  # the weights have moved, the engine's log-probs have not
    assert second["ratio_mean"] == 1


def with_stale_tokens(rank: Rank, model: Path) -> list[dict[str, float]]:
    """Half of every response was generated under other weights, where its log-probs were off by 3 nats."""
    trainer = start(rank, model)
    found = []
    for off, every in ((0.0, 2), (0.25, 2), (0.0, 1)):
        samples = []
        for sample in with_own_logprobs(trainer, recorded()):
            current = (np.arange(sample.num_response_tokens) % every).astype(np.float32)
            own = sample.columns["rollout_logprobs"] + np.where(current, off, 3.0).astype(np.float32)
            samples.append(sample.with_columns(rollout_logprobs=own, is_current=current))
        found.append(trainer.train(packed(trainer, samples), 0, "rl"))
    return found


def test_only_tokens_of_the_current_weights_are_compared_with_the_engine(results: dict[str, Any]) -> None:
    exact, off, all_stale = results["stale tokens"]
    assert 0.4 < exact["stale_share"] < 0.7
    assert exact["logprob_diff_max"] < 1e-5  # fp32, another packing
    assert off["logprob_diff_mean"] == pytest.approx(0.25, abs=1e-5)
    assert off["engine_kl"] == pytest.approx(math.exp(-0.25) - 1 + 0.25, abs=1e-5)
    assert all_stale["stale_share"] == 1
    assert not {"logprob_diff_mean", "logprob_diff_max", "engine_kl"} & all_stale.keys()


def test_several_steps_move_off_policy_within_a_rollout(results: dict[str, Any]) -> None:
    first, *_ = results["four steps"]
    assert first["ratio_mean"] != 1
    assert first["approx_kl"] > 0
    assert first["logprob_diff_max"] < 1e-5  # measured before the first of the steps


def repeated(rank: Rank, model: Path, *, epochs: int, times: int) -> Any:
    """Metrics and weights after two rollouts, whose batches are trained on `epochs` times `times` times."""
    trainer = start(rank, model)
    trainer.cfg.train.epochs_per_rollout = epochs
    samples = with_own_logprobs(trainer, recorded())
    history = [trainer.train(packed(trainer, samples, steps=2) * times, step, "rl") for step in range(2)]
    kept = [{name: x for name, x in each.items() if not name.startswith("seconds/")} for each in history]
    return kept, [x.detach().numpy().copy() for x in trainer.model.modules[0].parameters()]


def test_an_epoch_is_the_same_optimizer_steps_once_more(results: dict[str, Any]) -> None:
    (history, weights), (wanted, others) = results["two epochs"], results["twice in one"]
    assert history == wanted
    assert all(np.array_equal(one, other) for one, other in zip(weights, others, strict=True))
    assert history[0]["ratio_mean"] != 1, "old log-probs are those from before the first"


def at_a_temperature(rank: Rank, model: Path) -> dict[str, Any]:
    """A reinforced step (old, new and reference log-probs) between two supervised ones; the weights stay."""
    trainer = start(rank, model, kl_coef=0.5)
    trainer.cfg.rollout.sampling.temperature = 0.7
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)
    samples = with_transformers_logprobs(recorded(), 0.7)
    (batch,) = packed(trainer, recorded())
    before = trainer.train([batch], 0, "sft")["loss"]
    found = trainer.train(packed(trainer, samples, steps=2), 0, "rl")
    return {"rl": found, "sft": [before, trainer.train([batch], 0, "sft")["loss"]]}


def test_reinforcement_learning_is_at_the_sampling_temperature_and_supervision_at_one(results: dict[str, Any]) -> None:
    """fp32 against float64; at another temperature the log-probs are off by tenths of a nat."""
    found = results["temperature"]
    assert found["rl"]["logprob_diff_max"] < 1e-5
    assert found["rl"]["kl"] == 0
    assert found["rl"]["ratio_mean"] == pytest.approx(1, abs=1e-6)
    samples = with_transformers_logprobs(recorded(), 1.0)
    of_loss = [sample.columns["rollout_logprobs"][sample.loss_mask == 1] for sample in samples]
    assert found["sft"] == pytest.approx([-np.concatenate(of_loss).mean()] * 2, abs=1e-5)


def kl_from_start(rank: Rank, model: Path) -> tuple[list[float], bool]:
    from slime_megatron.train.reference import copy_weights

    trainer = start(rank, model, kl_coef=0.5)
    batches, before = packed(trainer, recorded()), copy_weights(trainer.model.modules)
    kls = [trainer.train(batches, step, "rl")["kl"] for step in range(3)]
    reference = trainer.reference[0]
    return kls, all((reference[name] == tensor).all() for name, tensor in before[0].items())


def test_kl_against_the_reference_grows_from_zero(results: dict[str, Any]) -> None:
    kls, reference_is_the_start = results["kl"]
    assert kls[0] == 0
    assert 0 < kls[1] < kls[2]
    assert reference_is_the_start


def kl_without_a_penalty(rank: Rank, model: Path) -> list[dict[str, float]]:
    trainer = start(rank, model, kl_coef=0.0)
    batches = packed(trainer, recorded())
    return [trainer.train(batches, step, "rl") for step in range(2)]


def test_the_divergence_is_measured_without_a_penalty(results: dict[str, Any]) -> None:
    first, second = results["kl measured"]
    assert first["kl"] == 0 < second["kl"]
    assert second["loss"] == second["pg_loss"]


def spoilt_step(rank: Rank, model: Path) -> tuple[str, bool]:
    from slime_megatron.train.reference import copy_weights

    trainer = start(rank, model)
    spoilt = recorded()[0].with_columns(advantages=np.full_like(recorded()[0].columns["advantages"], np.nan))
    before = copy_weights(trainer.model.modules)[0]
    with pytest.raises(SlimeError) as refused:
        trainer.train(packed(trainer, [spoilt, *recorded()[1:]]), 7, "rl")
    after = copy_weights(trainer.model.modules)[0]
    return str(refused.value), all((before[name] == after[name]).all() for name in before)


def test_a_gradient_that_is_not_finite_stops_the_step_before_the_weights_change(results: dict[str, Any]) -> None:
    message, weights_are_kept = results["spoilt"]
    assert "step 7, trainer rank 0: not finite: loss = nan, pg_loss = nan. The weights are untouched" in message
    assert weights_are_kept


def stages(rank: Rank, model: Path) -> list[tuple[str, float, int]]:
    """(stage, learning rate used, Adam's step) over the change from the supervised stage to RL."""
    trainer = start(rank, model)
    batches, seen = packed(trainer, recorded()), []
    for step in range(4):
        values = trainer.train(batches, step, "sft") if step < 2 else trainer.train(batches, step, "rl")
        steps = {group["step"] for adam in trainer.optimizer.adams() for group in adam.param_groups}
        seen.append((trainer.optimizer.stage, values["lr"], *steps))
    return seen


def test_reinforcement_learning_starts_with_fresh_moments_and_its_own_learning_rate(results: dict[str, Any]) -> None:
    seen = results["stages"]
    cosine = 3e-3 * 0.5 * (1 + math.cos(math.pi / 50))
    assert seen == [
        ("sft", 3e-3, 1),
        ("sft", pytest.approx(cosine, rel=1e-12), 2),
        ("rl", 1e-3, 1),
        ("rl", 1e-3, 2),
    ]


SCENARIOS = {
    "supervised": supervised_losses,
    "again": made_again,
    "packing by token": partial(losses_by_packing, loss_mean="token"),
    "packing by sample": partial(losses_by_packing, loss_mean="sample"),
    "what is left": of_what_is_left,
    "shared prompts": by_sharing,
    "one step": partial(reinforced, num_steps=1),
    "four steps": partial(reinforced, num_steps=4),
    "two epochs": partial(repeated, epochs=2, times=1),
    "twice in one": partial(repeated, epochs=1, times=2),
    "stale tokens": with_stale_tokens,
    "temperature": at_a_temperature,
    "kl": kl_from_start,
    "kl measured": kl_without_a_penalty,
    "spoilt": spoilt_step,
    "stages": stages,
}
