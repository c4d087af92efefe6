"""Three training steps in a parallel layout, and their comparison with those of one rank.

All layouts start from the same HF checkpoint and train on the same recorded rollout, with clipping or importance
weights, KL penalty and entropy bonus, in fp32. Differences are sums taken in another order:
- metrics: sums of a few hundred terms of order 1 at 6e-8 relative each; a maximum over tokens is one log-prob of
  order 5, or a ratio, whose rounding no mean makes smaller and which grows with it;
- gradients: the same over a backward pass of four layers; measured against the largest entry of the parameter's
  gradient, because entries that cancel to almost nothing have no digits left;
- steps two and three start from weights that Adam moved by the sign of gradients; eps=1e-6 keeps those that are
  almost zero from being pushed by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from slime import plugins
from slime.config.changes import changed
from slime.config.hf import read_hf_config
from slime.config.schema import SlimeConfig
from slime.models.bridge import traits_of
from slime.models.traits import Traits
from slime.types import TrainSample
from slime_testing.ranks import Rank
from slime_testing.recorded import recorded_samples

if TYPE_CHECKING:
    from slime_megatron.train.trainer import Trainer

TOLERANCES = {"mean": 2e-6, "maximum": 1e-5, "norm": 3e-6}
"""Of the metrics, by kind; the norm's is relative, the others' too where they are above 1, as fp32 rounds them."""
GRADIENT_TOLERANCE = 2e-5
"""Relative to the largest of a parameter's. In a first step layouts differ by 2e-6; Adam makes more of that where a
gradient is so near to 0 that rounding decides on its sign, and `ADAM_EPS` bounds how much."""
ADAM_EPS = 1e-5
NUM_STEPS = 3
EXTRA_LOSS_SCALE = 0.2
NUM_SAMPLES = 12
_NOT_COMPARED = ("seconds/logprobs", "seconds/own", "seconds/train", "num_tokens")

Gradients = dict[str, npt.NDArray[np.float32]]


@dataclass
class Trained:
    """What one rank has to tell of its steps in one layout.

    Attributes:
        exported: names of the weights before the first step, in the order of their export, and the weights; empty on
            ranks other than 0.
        history: metrics by step.
        gradients: whole gradients by step and HF name; empty on ranks other than 0.
    """

    exported: dict[str, torch.Tensor]
    history: list[dict[str, float]]
    gradients: list[Gradients]


def train_layouts(
    rank: Rank,
    family: str,
    folder: Path,
    layouts: Mapping[str, Mapping[str, Any]],
    record: Callable[[list[TrainSample], Sequence[Traits]], list[TrainSample]] | None = None,
) -> dict[str, Trained]:
    """All layouts, one after another. Runs in every rank.

    Args:
        record: adds to the samples what engines would record for these blocks, which is replayed then.
        layouts: `train.megatron` by name; a layout named `...overlap` reduces its gradients during the last backward
            pass; in one named `...frozen` no block learns by an extra loss.
    """
    trained = {}
    for name, layout in layouts.items():
        trained[name] = _train(rank, name, family, folder, layout, record)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return trained


def _train(rank: Rank, name: str, family: str, folder: Path, layout: Mapping[str, Any], record: Any) -> Trained:
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    cfg = _config(name, family, folder, layout)
    cfg.train.routing_replay = record is not None
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    exported = {name: tensor.clone() for name, tensor in trainer.export()}
    trainer.snapshot_reference()
    gradients = record_gradients(trainer)
    samples = recorded_samples(NUM_SAMPLES, trainer.hf["vocab_size"])
    if record:
        samples = record(samples, trainer.model.traits)
    batches = pack(
        [x.with_columns(is_current=np.arange(x.num_response_tokens, dtype=np.float32) % 2) for x in samples],
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=512,
        loss_mean=cfg.algo.loss_mean,
        # Two, or twice as many as an interleaved pipeline fills with: gradients add up, and it has a steady state.
        micro_batch_multiple=2 * trainer.micro_batch_multiple,
    )
    shares = [batch.share(trainer.data_parallel_rank) for batch in batches]
    history = []
    for step in range(NUM_STEPS):
        # Either ratios to the engine's log-probs, some of which are clipped, or importance weights of stale tokens.
        cfg.algo.rollout_logprobs_as_old = step != 1
        cfg.algo.kl_coef = 0.1 if step else None  # at first policy and reference are one
        history.append(trainer.train(shares, step, "rl"))
    compared = [{name: x for name, x in values.items() if name not in _NOT_COMPARED} for values in history]
    return Trained(exported, compared, gradients)


def _config(name: str, family: str, folder: Path, layout: Mapping[str, Any]) -> SlimeConfig:
    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, str(folder), NUM_STEPS
    cfg.train.megatron, cfg.train.logprob_chunk_tokens = dict(layout), 32
    cfg.train.ddp = {"overlap_grad_reduce": "overlap" in name}
    cfg.train.optimizer = {"lr": 1e-3, "adam_eps": ADAM_EPS, "weight_decay": 0.1}
    cfg.algo.kl_coef, cfg.algo.entropy_coef = 0.1, 0.01
    traits = traits_of(plugins.load().models.create(family), read_hf_config(str(folder)))
    learning = [trait.learns_by for trait in traits if trait.extra_loss and "frozen" not in name]
    return changed(cfg, dict.fromkeys(learning, EXTRA_LOSS_SCALE))


def compare(layout: str, results: Sequence[Trained], one_rank: Trained) -> tuple[float, float, float]:
    """Check every rank's metrics and rank 0's gradients; AssertionError names what differs.

    Returns:
        Largest difference of the metrics that are means, relative one of the gradient norms, and of the gradients.
    """
    assert all(result.history == results[0].history for result in results), f"{layout}: ranks report different metrics"
    metrics, norms = _compare_histories(layout, results[0].history, one_rank.history)
    return metrics, norms, _compare_gradients(layout, results[0].gradients, one_rank.gradients)


def _compare_histories(
    layout: str, got: Sequence[dict[str, float]], wanted: Sequence[dict[str, float]]
) -> tuple[float, float]:
    largest = dict.fromkeys(TOLERANCES, 0.0)
    for step, (values, reference) in enumerate(zip(got, wanted, strict=True)):
        for name in reference:
            kind = "norm" if name == "grad_norm" else "maximum" if name.endswith("_max") else "mean"
            scale = (reference[name] or 1.0) if kind == "norm" else max(1.0, abs(reference[name]))
            difference = abs(values[name] - reference[name]) / scale
            off = f"{values[name]} not {reference[name]}, {difference:.1e} apart of {TOLERANCES[kind]:.0e} allowed"
            assert difference <= TOLERANCES[kind], f"{layout} step {step} {name}: {off}"
            largest[kind] = max(largest[kind], difference)
    return largest["mean"], largest["norm"]


def _compare_gradients(layout: str, got: Sequence[Gradients], wanted: Sequence[Gradients]) -> float:
    largest = 0.0
    for step, (gradients, reference) in enumerate(zip(got, wanted, strict=True)):
        assert gradients.keys() == reference.keys()
        for name, gradient in gradients.items():
            scale = np.abs(reference[name]).max() or 1.0  # behind a head that begins at zero all gradients are 0
            error = float(np.abs(gradient - reference[name]).max() / scale)
            assert error <= GRADIENT_TOLERANCE, f"{layout} step {step}: gradient of {name} is off by {error:.1e}"
            largest = max(largest, error)
    return largest


def record_gradients(trainer: Trainer) -> list[Gradients]:
    """A list that gets every step's gradients, whole and by HF name, on rank 0, just before the optimizer's turn.

    The gradients are put in the parameters' place and exported, as the weights are; frozen weights stand for
    themselves.
    """
    recorded: list[Gradients] = []
    finalize = trainer.model.config.finalize_model_grads_func
    parameters = [
        parameter for module in trainer.model.modules for parameter in module.parameters() if parameter.requires_grad
    ]

    def finalize_and_record(chunks: Any, *args: Any, **kwargs: Any) -> None:
        finalize(chunks, *args, **kwargs)
        gather_shards(chunks)
        before = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(parameter.main_grad)
            exported = {name: tensor.numpy().copy() for name, tensor in trainer.export()}
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        # The correction bias is a buffer: what was exported of it is no gradient.
        recorded.append({name: value for name, value in exported.items() if "correction_bias" not in name})

    trainer.model.config.finalize_model_grads_func = finalize_and_record
    return recorded


def gather_shards(chunks: Any) -> None:
    """The distributed optimizer leaves each data-parallel rank a reduced share of the gradients: share them all."""
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            group = buffer.data_parallel_group
            for bucket in buffer.buckets:
                share = bucket.grad_data.view(group.size(), -1)[group.rank()].clone()
                torch.distributed.all_gather_into_tensor(bucket.grad_data, share, group=group)
