"""The critic beside the policy: the same loss and gradients in every layout, bit for bit after a resume, and apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import Gradients, gather_shards, record_gradients

from .tiny import HF, write_model

NUM_STEPS = 2
OPTIMIZER_STEPS = 2
OF_REFERENCE = 0.9
TOLERANCE = 5e-6
"""Of metrics, relative to 1 or to their size: sums of a few hundred terms in fp32, taken in another order."""
GRADIENT_TOLERANCE = 3e-5
"""Relative to the largest entry of a parameter's gradient, after steps of Adam by gradients that differed as much."""
WAYS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    1: {"alone": {}, "small packs": {"max_tokens": 48}, "not finite at masked tokens": {"spoils": True}},
    2: {
        "data parallel": {},
        "context parallel": {"context_parallel_size": 2},
        "tensor parallel": {"tensor_model_parallel_size": 2},
        "pipeline parallel": {"pipeline_model_parallel_size": 2},
    },
}


class Told(NamedTuple):
    """What a rank has to tell: metrics by step, gradients of policy and critic by optimizer step."""

    history: list[dict[str, float]]
    policy: list[Gradients]
    critic: list[Gradients]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


def start(
    rank: Rank,
    model: Path,
    megatron: Mapping[str, Any] | None = None,
    algo: Mapping[str, Any] | None = None,
    device: str = "cpu",
    optimizer: Mapping[str, Any] | None = None,
    **critic: Any,
) -> Any:
    """The reference, if there is one, has other weights than the policy: `OF_REFERENCE` times these."""
    from slime.config.schema import AlgoConfig, Device, SlimeConfig
    from slime_megatron.train.trainer import Trainer

    options = {"gamma": 0.99, "gae_lambda": 0.95, "critic_lambda": 0.9, "value_clip": 0.05}
    cfg = SlimeConfig(algo=AlgoConfig(**{"advantage": "gae", "advantage_options": options, **(algo or {})}))
    hf = json.loads((model / "config.json").read_text())
    cfg.model.family, cfg.model.path, cfg.train.megatron = hf["model_type"], str(model), dict(megatron or {})
    cfg.train.mtp_loss_scale = 0.2 if hf.get("num_nextn_predict_layers") else None
    cfg.run.num_steps, cfg.train.steps_per_rollout = 10, OPTIMIZER_STEPS
    cfg.cluster.device = Device(device)
    cfg.train.optimizer = {"lr": 1e-3, "adam_eps": 1e-6} | dict(optimizer or {})
    cfg.algo.critic.lr = 2e-3
    for name, value in critic.items():
        setattr(cfg.algo.critic, name, value)
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    for tensor in (tensor for module in trainer.reference or () for tensor in module.values()):
        tensor.mul_(OF_REFERENCE)
    return trainer


def batches_of(
    trainer: Any, step: int, *, max_tokens: int = 512, spoils: bool = False, optimizer_steps: int = OPTIMIZER_STEPS
) -> list[Any]:
    """Shares of this rank. A reward stands at the last loss token of each sample.

    Args:
        spoils: put NaN and infinities where the loss mask is 0.
    """
    from slime.train.packing import pack

    samples, spoiler = [], np.random.default_rng(4)
    for sample in recorded_samples(12, HF["vocab_size"], seed=step):
        reward = sample.columns["advantages"][0]
        rewards = np.zeros_like(sample.loss_mask)
        rewards[np.flatnonzero(sample.loss_mask)[-1:]] = reward
        columns = {**sample.columns, "advantages": rewards}
        if spoils:
            bad = spoiler.choice([np.nan, np.inf, -np.inf], len(rewards)).astype(np.float32)
            columns = {name: np.where(sample.loss_mask != 0, numbers, bad) for name, numbers in columns.items()}
        samples.append(sample.with_columns(**columns))
    batches = pack(
        samples,
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=max_tokens,
        loss_mean=trainer.cfg.algo.loss_mean,
        num_optimizer_steps=optimizer_steps,
        micro_batch_multiple=trainer.micro_batch_multiple,
    )
    return [batch.share(trainer.data_parallel_rank) for batch in batches]


def record_critic_gradients(trainer: Any) -> list[Gradients]:
    """Whole gradients of the critic's trunk by HF name, on rank 0: put in the policy's place and exported, as it has
    the same layout."""
    recorded: list[Gradients] = []
    config = trainer.critic.model.config
    finalize = config.finalize_model_grads_func

    def finalize_and_record(chunks: Any, *args: Any, **kwargs: Any) -> None:
        finalize(chunks, *args, **kwargs)
        gather_shards(chunks)
        pairs = []
        for mine, others in zip(trainer.model.modules, trainer.critic.model.modules, strict=True):
            gradients = {name: each.main_grad for name, each in others.named_parameters()}
            pairs += [(each, gradients.get(name)) for name, each in mine.named_parameters() if "output" not in name]
        before = [each.detach().clone() for each, _ in pairs]
        with torch.no_grad():
            for each, gradient in pairs:
                each.copy_(gradient)
            recorded.append({name: x.numpy().copy() for name, x in trainer.export() if "lm_head" not in name})
            for (each, _), value in zip(pairs, before, strict=True):
                each.copy_(value)

    config.finalize_model_grads_func = finalize_and_record
    return recorded


def train_ways(
    rank: Rank, model: Path, ways: Mapping[str, Mapping[str, Any]], algo: Mapping[str, Any] | None = None
) -> dict[str, Told]:
    told = {}
    for way, options in ways.items():
        packing = {name: options[name] for name in ("max_tokens", "spoils") if name in options}
        trainer = start(rank, model, {name: x for name, x in options.items() if name not in packing}, algo)
        trainer.begin_critic("rl")
        recorded = record_gradients(trainer), record_critic_gradients(trainer)
        history = [trainer.train(batches_of(trainer, step, **packing), step, "rl") for step in range(1, NUM_STEPS + 1)]
        kept = [{name: x for name, x in each.items() if not name.startswith("seconds/")} for each in history]
        told[way] = Told(kept, *recorded)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return told


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Told]:
    [told] = run_ranks(train_ways, 1, model, WAYS[1], timeout_s=110)
    return told


def compare(way: str, told: Told, wanted: Told) -> None:
    for step, (values, reference) in enumerate(zip(told.history, wanted.history, strict=True)):
        assert values.keys() == reference.keys()
        for name, value in reference.items():
            off = abs(values[name] - value) / max(1.0, abs(value))
            assert name == "num_tokens" or off <= TOLERANCE, f"{way} step {step}: {name} {values[name]} not {value}"
    for of, mine, others in (("policy", told.policy, wanted.policy), ("critic", told.critic, wanted.critic)):
        for number, (gradients, reference) in enumerate(zip(mine, others, strict=True)):
            for name, gradient in gradients.items():
                largest = np.abs(reference[name]).max()
                error = np.abs(gradient - reference[name]).max() / (largest or 1.0)
                assert error <= GRADIENT_TOLERANCE, f"{way} {of} {number}: {name} is off by {error:.1e}"


def test_what_is_learnt_depends_on_no_packing_and_no_masked_token(alone: dict[str, Told]) -> None:
    first = alone["alone"]
    for way, told in alone.items():
        compare(way, told, first)
    assert not any(x.any() for x in first.critic[0].values()), "a head of zeros gives the trunk no gradient"
    assert all(x.any() for x in first.critic[-1].values())
    assert first.history[0]["critic_value_mean"] != 0, "the second optimizer step sees what the first one learnt"
    assert first.history[0]["critic_lr"] == 2e-3
    assert first.history[0]["lr"] == 1e-3


@pytest.mark.slow
def test_every_layout_learns_the_same(model: Path, alone: dict[str, Told]) -> None:
    results = run_ranks(train_ways, 2, model, WAYS[2], timeout_s=220)
    for way in WAYS[2]:
        assert results[0][way].history == results[1][way].history, "all ranks report the same"
        compare(way, results[0][way], alone["alone"])


def weights_of(trainer: Any) -> list[torch.Tensor]:
    """Of policy and critic, with what their optimizers keep."""
    found = []
    for model, optimizer in ((trainer.model, trainer.optimizer), (trainer.critic.model, trainer.critic.optimizer)):
        found += [x.detach().clone() for module in model.modules for x in module.state_dict().values() if x is not None]
        for adam in optimizer.adams():
            found += [x.clone() for state in adam.state.values() for x in state.values()]
    return found


def save_and_go_on(rank: Rank, model: Path, folder: Path, megatron: Mapping[str, Any]) -> Any:
    """One step, a checkpoint, and another step; what is there afterwards."""
    trainer = start(rank, model, megatron, lr_warmup_steps=6)
    trainer.begin_critic("rl")
    trainer.train(batches_of(trainer, 1), 1, "rl")
    trainer.save(folder)
    exported = {name: x.clone() for name, x in trainer.export()}
    return trainer.train(batches_of(trainer, 2), 2, "rl"), weights_of(trainer), exported


def load_and_go_on(rank: Rank, model: Path, folder: Path, megatron: Mapping[str, Any]) -> Any:
    trainer = start(rank, model, megatron, lr_warmup_steps=6)
    trainer.load(folder)
    exported = {name: x.clone() for name, x in trainer.export()}
    return trainer.train(batches_of(trainer, 2), 2, "rl"), weights_of(trainer), exported


def numbers(values: Mapping[str, float]) -> dict[str, float]:
    """Without what a second trainer in the same process need not repeat: seconds, and the memory that is allocated."""
    return {name: value for name, value in values.items() if not name.startswith(("seconds/", "memory/"))}


@pytest.mark.slow
def test_a_checkpoint_in_bf16_has_both_models_bit_for_bit(model: Path, tmp_path: Path) -> None:
    """As on GPUs: the critic's head is fp32 in a group of bf16."""
    ways = (save_and_go_on, load_and_go_on)
    saved, loaded = (run_ranks(one, 1, model, tmp_path, {"bf16": True})[0] for one in ways)
    assert numbers(saved[0]) == numbers(loaded[0])
    assert all(torch.equal(a, b) for a, b in zip(saved[1], loaded[1], strict=True))


@pytest.mark.slow
def test_a_checkpoint_has_both_models_bit_for_bit(model: Path, tmp_path: Path) -> None:
    saved, loaded = (run_ranks(one, 1, model, tmp_path, {})[0] for one in (save_and_go_on, load_and_go_on))
    assert numbers(saved[0]) == numbers(loaded[0])
    assert len(saved[1]) > 40
    assert all(torch.equal(a, b) for a, b in zip(saved[1], loaded[1], strict=True))
    # In another layout the sums run in another order.
    [first, _] = run_ranks(load_and_go_on, 2, model, tmp_path, {"tensor_model_parallel_size": 2}, timeout_s=110)
    for name, value in numbers(saved[0]).items():
        assert name == "num_tokens" or first[0][name] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), name


@pytest.mark.slow
def test_the_export_of_a_policy_with_a_critic_is_that_of_the_policy(model: Path, tmp_path: Path) -> None:
    [(_, _, exported)] = run_ranks(save_and_go_on, 1, model, tmp_path, {})
    assert exported.keys() == {*safetensors_names(model)}


def safetensors_names(model: Path) -> list[str]:
    from safetensors import safe_open

    names = []
    for file in model.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names += opened.keys()
    return names


def train_with(rank: Rank, model: Path, critic: Mapping[str, Any]) -> Any:
    trainer = start(rank, model, **critic)
    trainer.begin_critic("rl")
    first = [x.detach().clone() for x in trainer.critic.model.modules[0].parameters()]
    before = [x.detach().clone() for x in trainer.model.modules[0].parameters()]
    trainer.train(batches_of(trainer, 1), 1, "rl")
    after_one = [x.detach().clone() for x in trainer.model.modules[0].parameters()]
    values = trainer.train(batches_of(trainer, 2), 2, "rl")
    kept = all(torch.equal(a, b) for a, b in zip(before, after_one, strict=True))
    return numbers(values), weights_of(trainer) if not critic.get("offload") else None, kept, first


def test_the_critic_alone_learns_at_first(model: Path) -> None:
    [(values, _, kept, _)] = run_ranks(train_with, 1, model, {"only_steps": 1})
    assert kept, "the policy stays as it is in the first step"
    assert values["grad_norm"] > 0, "and learns in the second one"
    [(values, _, kept, _)] = run_ranks(train_with, 1, model, {"only_steps": 2})
    assert "grad_norm" not in values
    assert {"loss", "entropy", "ratio_mean", "critic_grad_norm"} <= values.keys(), "the policy is measured all the same"


def train_repeatedly(rank: Rank, model: Path, epochs: int, times: int) -> Any:
    trainer = start(rank, model)
    trainer.cfg.train.epochs_per_rollout = epochs
    trainer.begin_critic("rl")
    history = [numbers(trainer.train(batches_of(trainer, step) * times, step, "rl")) for step in (1, 2)]
    return history, weights_of(trainer)


def test_an_epoch_is_the_same_optimizer_steps_once_more_for_both(model: Path) -> None:
    """Advantages and values are those from before the first."""
    [(history, weights)] = run_ranks(train_repeatedly, 1, model, 2, 1)
    [(wanted, others)] = run_ranks(train_repeatedly, 1, model, 1, 2)
    for values, reference in zip(history, wanted, strict=True):
        assert values == pytest.approx(reference, rel=TOLERANCE, abs=TOLERANCE)  # means over twice as many values
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(weights, others, strict=True))


def measured_once(rank: Rank, model: Path) -> list[float]:
    """Tokens that the policy computed in a step of two epochs, in which the critic alone learns and in which both do,
    over those of one epoch."""
    trainer = start(rank, model, only_steps=1)
    trainer.cfg.train.epochs_per_rollout = 2
    trainer.begin_critic("rl")
    found = []
    for step in (1, 2):
        batches = batches_of(trainer, step)
        found.append(trainer.train(batches, step, "rl")["num_tokens"] / sum(batch.num_tokens for batch in batches))
    return found


def test_a_policy_that_stays_as_it_is_is_measured_once(model: Path) -> None:
    assert run_ranks(measured_once, 1, model) == [[1.0, 2.0]]


def test_who_takes_turns_learns_the_same(model: Path) -> None:
    [(together, *_)] = run_ranks(train_with, 1, model, {})
    [(by_turns, *_)] = run_ranks(train_with, 1, model, {"offload": True})
    assert together == by_turns, "what moves to the host and back is bit for bit the same"


def test_the_critic_starts_from_another_folder_and_the_policy_does_not(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = write_other(tmp_path_factory)
    [(_, _, _, own)] = run_ranks(train_with, 1, model, {})
    [(_, _, _, given)] = run_ranks(train_with, 1, model, {"path": str(other)})
    [(_, _, _, wanted)] = run_ranks(train_with, 1, other, {})
    assert all(torch.equal(a, b) for a, b in zip(given, wanted, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(given, own, strict=True))


def write_other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("other")
    write_checkpoint(HF, folder, seed=7)
    return folder
