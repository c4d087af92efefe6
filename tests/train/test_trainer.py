"""The trainer on one rank, with the real tiny dense family: learning, the log-prob passes, errors."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from slime.errors import SlimeError
from slime.net import free_port
from slime.testing.ranks import Rank, run_ranks

pytestmark = pytest.mark.slow

HF = {
    "attention_bias": True,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "model_type": "glm4",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": 96,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime.testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(HF, folder)
    return folder


@pytest.fixture(scope="module")
def results(model: Path) -> dict[str, Any]:
    """What every scenario below returned; all in one process, because a process takes seconds to start."""
    return run_ranks(run_scenarios, 1, model)[0]


def run_scenarios(rank: Rank, model: Path) -> dict[str, Any]:
    found = {}
    for name, scenario in SCENARIOS.items():
        found[name] = scenario(rank._replace(master_port=free_port(rank.master_addr)), model)
        dist.destroy_process_group()
    return found


def start(rank: Rank, model: Path, **algo: Any) -> Any:
    from slime.config.schema import AlgoConfig, SlimeConfig
    from slime.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = "glm4", str(model), 50
    cfg.train.optimizer, cfg.algo = {"lr": 1e-3}, AlgoConfig(**algo)
    cfg.sft.num_steps, cfg.sft.lr = 50, 3e-3
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    return trainer


def packed(trainer: Any, samples: list[Any], *, steps: int = 1, max_tokens: int = 200) -> list[Any]:
    from slime.train.packing import pack

    return pack(
        samples,
        num_dp=1,
        align=1,
        max_tokens=max_tokens,
        loss_mean=trainer.cfg.algo.loss_mean,
        num_optimizer_steps=steps,
    )


def recorded(seed: int = 0) -> list[Any]:
    from slime.testing.recorded import recorded_samples

    return recorded_samples(16, HF["vocab_size"], seed=seed)


def supervised_losses(rank: Rank, model: Path) -> list[float]:
    trainer = start(rank, model)
    (batch,) = packed(trainer, recorded())
    return [trainer.train_sft(batch, step)["loss"] for step in range(30)]


def test_supervised_training_learns_its_samples(results: dict[str, Any]) -> None:
    losses = results["supervised"]
    assert losses[0] == pytest.approx(math.log(HF["vocab_size"]), abs=1.5)  # a random model knows nothing
    assert losses[-1] < losses[0] - 1


def losses_by_packing(rank: Rank, model: Path, loss_mean: str) -> list[dict[str, float]]:
    from slime.config.schema import LossMean

    trainer = start(rank, model, loss_mean=LossMean(loss_mean), rollout_logprobs_as_old=True)
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay, only the packing changes
    return [trainer.train_rl(packed(trainer, recorded(), max_tokens=cap), 0) for cap in (40, 100, 1000)]


@pytest.mark.parametrize("loss_mean", ["token", "sample"])
def test_the_loss_does_not_depend_on_the_packing(results: dict[str, Any], loss_mean: str) -> None:
    by_cap = results[f"packing by {loss_mean}"]
    for name in ("loss", "pg_loss", "entropy", "clip_fraction", "ratio_mean", "approx_kl", "logprob_diff_mean"):
        assert [found[name] for found in by_cap] == pytest.approx([by_cap[0][name]] * 3, rel=1e-6), name
    assert by_cap[0]["clip_fraction"] > 0  # the recorded ratios do spread


def reinforced(rank: Rank, model: Path, num_steps: int, **algo: Any) -> list[dict[str, float]]:
    trainer = start(rank, model, **algo)
    samples = with_own_logprobs(trainer, recorded())
    return [trainer.train_rl(packed(trainer, samples, steps=num_steps), step) for step in range(3)]


def with_own_logprobs(trainer: Any, samples: list[Any]) -> list[Any]:
    """The samples as an engine would have recorded them that holds exactly the trainer's weights."""
    from slime.train.compat import cpu_stands_in_for_cuda
    from slime.train.local_batch import local_micro_batches
    from slime.train.step import score

    (batch,) = packed(trainer, samples)
    with cpu_stands_in_for_cuda():
        scores = score(trainer.model, local_micro_batches(batch, trainer.device))
    found = list(samples)
    for micro, (logprobs, _) in zip(batch.micro_batches[0], scores, strict=True):
        for number, start_, end in zip(micro.sample_ids, micro.cu_seqlens, micro.cu_seqlens[1:], strict=False):
            own = logprobs[start_ : end - 1][-samples[number].num_response_tokens :].numpy()
            found[number] = dataclasses.replace(samples[number], rollout_logprobs=own)
    return found


def test_one_step_needs_no_pass_for_old_logprobs_and_starts_on_policy(results: dict[str, Any]) -> None:
    first, second, _ = results["one step"]
    assert first["ratio_mean"] == 1
    assert first["clip_fraction"] == first["approx_kl"] == first["kl"] == 0
    assert first["logprob_diff_max"] < 1e-5  # the same weights; only the packing differs, fp32
    assert second["logprob_diff_mean"] > 1e-4  # the weights have moved, the engine's log-probs have not
    assert second["ratio_mean"] == 1


def with_stale_tokens(rank: Rank, model: Path) -> list[dict[str, float]]:
    """Half of every response was generated under other weights, where its log-probs were off by 3 nats."""
    trainer = start(rank, model)
    found = []
    for off in (0.0, 0.25):
        samples = []
        for sample in with_own_logprobs(trainer, recorded()):
            current = (np.arange(sample.num_response_tokens) % 2).astype(np.float32)
            own = sample.rollout_logprobs + np.where(current, off, 3.0).astype(np.float32)
            samples.append(dataclasses.replace(sample, rollout_logprobs=own, is_current=current))
        found.append(trainer.train_rl(packed(trainer, samples), 0))
    return found


def test_only_tokens_of_the_current_weights_are_compared_with_the_engine(results: dict[str, Any]) -> None:
    exact, off = results["stale tokens"]
    assert 0.3 < exact["current_share"] < 0.6
    assert exact["logprob_diff_max"] < 1e-5  # fp32, another packing
    assert off["logprob_diff_mean"] == pytest.approx(0.25, abs=1e-5)


def test_several_steps_move_off_policy_within_a_rollout(results: dict[str, Any]) -> None:
    first, *_ = results["four steps"]
    assert first["ratio_mean"] != 1
    assert first["approx_kl"] > 0
    assert first["logprob_diff_max"] < 1e-5  # measured before the first of the steps


def at_a_temperature(rank: Rank, model: Path) -> dict[str, Any]:
    """A reinforced step (old, new and reference log-probs) between two supervised ones; the weights stay."""
    trainer = start(rank, model, kl_coef=0.5)
    trainer.cfg.rollout.sampling.temperature = 0.7
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)
    samples = with_transformers_logprobs(recorded(), 0.7)
    (batch,) = packed(trainer, recorded())
    before = trainer.train_sft(batch, 0)["loss"]
    found = trainer.train_rl(packed(trainer, samples, steps=2), 0)
    return {"rl": found, "sft": [before, trainer.train_sft(batch, 0)["loss"]]}


def with_transformers_logprobs(samples: list[Any], temperature: float) -> list[Any]:
    """The samples with log-probs of transformers' model of the same weights, at a temperature."""
    import torch

    from slime.testing.models import random_model

    model, found = random_model(HF).double(), []
    for sample in samples:
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        with torch.no_grad():
            logp = (model(tokens[None]).logits[0, -count - 1 : -1] / temperature).log_softmax(1)
        own = logp.gather(1, tokens[-count:, None])[:, 0].float().numpy()
        found.append(dataclasses.replace(sample, rollout_logprobs=own))
    return found


def test_reinforcement_learning_is_at_the_sampling_temperature_and_supervision_at_one(results: dict[str, Any]) -> None:
    """fp32 against float64; at another temperature the log-probs are off by tenths of a nat."""
    found = results["temperature"]
    assert found["rl"]["logprob_diff_max"] < 1e-5
    assert found["rl"]["kl"] == 0
    assert found["rl"]["ratio_mean"] == pytest.approx(1, abs=1e-6)
    samples = with_transformers_logprobs(recorded(), 1.0)
    of_loss = [sample.rollout_logprobs[sample.loss_mask == 1] for sample in samples]
    assert found["sft"] == pytest.approx([-np.concatenate(of_loss).mean()] * 2, abs=1e-5)


def kl_from_start(rank: Rank, model: Path) -> tuple[list[float], bool]:
    from slime.train.reference import copy_weights

    trainer = start(rank, model, kl_coef=0.5)
    batches, before = packed(trainer, recorded()), copy_weights(trainer.model.modules)
    kls = [trainer.train_rl(batches, step)["kl"] for step in range(3)]
    reference = trainer.reference[0]
    return kls, all((reference[name] == tensor).all() for name, tensor in before[0].items())


def test_kl_against_the_reference_grows_from_zero(results: dict[str, Any]) -> None:
    kls, reference_is_the_start = results["kl"]
    assert kls[0] == 0
    assert 0 < kls[1] < kls[2]
    assert reference_is_the_start


def spoilt_step(rank: Rank, model: Path) -> tuple[str, bool]:
    from slime.train.reference import copy_weights

    trainer = start(rank, model)
    spoilt = dataclasses.replace(recorded()[0], advantages=np.full_like(recorded()[0].advantages, np.nan))
    before = copy_weights(trainer.model.modules)[0]
    with pytest.raises(SlimeError) as refused:
        trainer.train_rl(packed(trainer, [spoilt, *recorded()[1:]]), 7)
    after = copy_weights(trainer.model.modules)[0]
    return str(refused.value), all((before[name] == after[name]).all() for name in before)


def test_a_gradient_that_is_not_finite_stops_the_step_before_the_weights_change(results: dict[str, Any]) -> None:
    message, weights_are_kept = results["spoilt"]
    assert "step 7, trainer rank 0: loss nan or a gradient is not finite" in message
    assert weights_are_kept


def stages(rank: Rank, model: Path) -> list[tuple[str, float, int]]:
    """(stage, learning rate used, Adam's step) over the change from the supervised stage to RL."""
    trainer = start(rank, model)
    batches, seen = packed(trainer, recorded()), []
    for step in range(4):
        values = trainer.train_sft(batches[0], step) if step < 2 else trainer.train_rl(batches, step)
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
    "packing by token": partial(losses_by_packing, loss_mean="token"),
    "packing by sample": partial(losses_by_packing, loss_mean="sample"),
    "one step": partial(reinforced, num_steps=1),
    "four steps": partial(reinforced, num_steps=4),
    "stale tokens": with_stale_tokens,
    "temperature": at_a_temperature,
    "kl": kl_from_start,
    "spoilt": spoilt_step,
    "stages": stages,
}
