"""An optimizer step of samples that share the rows of what they begin with, and its comparison with that of whole ones.

Each group has a micro-batch of its own both times, because some losses of layers, as the load balancing loss (Fedus et
al. 2022, section 2.2), are of a micro-batch. Of the metrics and gradients the tolerances are those of
`slime_testing.training`: sums run in another order.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from slime.config.changes import changed
from slime.types import Batch, MicroBatch, TrainSample
from slime_testing.models import run_config
from slime_testing.ranks import Rank
from slime_testing.recorded import recorded_samples
from slime_testing.training import GRADIENT_TOLERANCE, TOLERANCES, record_gradients

if TYPE_CHECKING:
    from slime_megatron.train.trainer import Trainer

NUM_GROUPS, GROUP = 4, 5
Record = Callable[["Trainer", Sequence[TrainSample]], list[TrainSample]]


class Step(NamedTuple):
    """What one rank has to tell of a step.

    Attributes:
        metrics: without times.
        gradients: whole ones by HF name; empty on ranks other than 0.
        weights: what is exported after the step, by HF name.
    """

    metrics: dict[str, float]
    gradients: dict[str, np.ndarray]
    weights: dict[str, torch.Tensor]


def of_tries(samples: Sequence[TrainSample]) -> list[list[TrainSample]]:
    """Samples with their own responses, behind what others of their group begin with; `GROUP` make two attempts.

    The first attempt has four segments: a turn; one that goes on in the middle of its response; one that goes on in the
    middle of that one's; and one that goes on behind it. So the last two are branches of the second, and read three
    sequences' rows or two. The other attempt begins with the first one's prompt.
    """
    return [_trie(samples[start : start + GROUP], start) for start in range(0, len(samples), GROUP)]


def _trie(group: Sequence[TrainSample], attempt: int) -> list[TrainSample]:
    parts = [np.split(sample.tokens, [sample.num_tokens - sample.num_response_tokens]) for sample in group]
    (prompt, first), (said, second), (asked, third), (told, fourth), (_, other) = parts
    turn = np.concatenate([prompt, first[: len(first) // 2], said])
    tokens = [
        np.concatenate([prompt, first]),
        np.concatenate([turn, second]),
        np.concatenate([turn, second[: len(second) // 2], asked, third]),
        np.concatenate([turn, second, told, fourth]),
        np.concatenate([prompt, other]),
    ]
    attempts = [attempt] * 4 + [attempt + 1]
    numbered = zip(group, tokens, attempts, strict=True)
    return [dataclasses.replace(sample, tokens=own, attempt=number) for sample, own, number in numbered]


def train_both(
    rank: Rank,
    folder: Path,
    layouts: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    record: Record | None = None,
) -> dict[str, tuple[Step, Step]]:
    """By layout, a step of whole sequences and one of samples that share tokens. Runs in every rank.

    Args:
        layouts: `train.megatron` by name.
        settings: of all layouts, by dotted key (`train.megatron.<field>`, `train.<key>`).
        record: adds to the samples of a group what engines would record, which is replayed then.
    """
    found = {}
    for name, layout in layouts.items():
        steps = []
        for shared in (False, True):
            steps.append(_train(rank, folder, layout, settings, record, shared))
            rank = rank.again()
            torch.distributed.destroy_process_group()
        found[name] = (steps[0], steps[1])
    return found


def _train(
    rank: Rank,
    folder: Path,
    layout: Mapping[str, Any],
    settings: Mapping[str, Any],
    record: Record | None,
    shared: bool,
) -> Step:
    from slime_megatron.train.trainer import Trainer

    hf = json.loads((folder / "config.json").read_text())
    cfg = run_config(hf["model_type"], folder, layout)
    cfg.run.num_steps, cfg.train.optimizer, cfg.algo.entropy_coef = 9, {"lr": 1e-3}, 0.01
    cfg = changed(cfg, settings)
    cfg.train.routing_replay = record is not None
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    gradients = record_gradients(trainer)
    assert trainer.layout().share_below == 1, "on a CPU, where the model can"
    batch = _batch(trainer, shared, record or (lambda _, samples: list(samples)))
    values = trainer.train([batch.share(trainer.data_parallel_rank)], 0, "rl")
    metrics = {name: value for name, value in values.items() if not name.startswith("seconds/")}
    weights = {name: tensor.clone() for name, tensor in trainer.export()}
    return Step(metrics, gradients[0] if gradients else {}, weights)


def _batch(trainer: Trainer, shared: bool, record: Record) -> Batch:
    """Each group in a micro-batch of its own."""
    from slime.config.schema import LossMean
    from slime.train.packing import pack

    options: dict[str, Any] = {"num_dp": 1, "align": trainer.packing_align, "loss_mean": LossMean.token}
    options["lookahead"] = trainer.layout().lookahead
    of_groups = [
        record(trainer, group) for group in of_tries(recorded_samples(NUM_GROUPS * GROUP, trainer.hf["vocab_size"]))
    ]
    batches = [pack(group, max_tokens=4096, share_below=float(shared), **options)[0] for group in of_groups]
    micro_batches = [micro for batch in batches for [micro] in batch.micro_batches]
    assert all((micro.prefixes is not None) == shared for micro in micro_batches)
    assert _depth(micro_batches) == (3 if shared else 1), "a sequence of the rows of three, in some group"
    num_dp = trainer.data_parallel_size
    return dataclasses.replace(
        batches[0],
        micro_batches=tuple(tuple(micro_batches[rank::num_dp]) for rank in range(num_dp)),
        num_tokens=sum(batch.num_tokens for batch in batches),
        num_loss_tokens=sum(batch.num_loss_tokens for batch in batches),
    )


def _depth(micro_batches: Sequence[MicroBatch]) -> int:
    """Of how many sequences' rows one is made, at most."""
    from slime.train.packing import shared_rows

    shared = [
        (micro.cu_seqlens.tolist(), micro.prefixes.tolist()) for micro in micro_batches if micro.prefixes is not None
    ]
    return 1 + max((len(rows) for pack in shared for rows in shared_rows(*pack)), default=0)


def compare_shared(layout: str, results: Sequence[tuple[Step, Step]]) -> None:
    """Check every rank's metrics and correction biases, and rank 0's gradients; AssertionError names what differs."""
    for whole, shared in results:
        assert shared.metrics.keys() == whole.metrics.keys()
        for name, wanted in whole.metrics.items():
            tolerance = TOLERANCES["maximum" if name.endswith("_max") else "mean"] * max(1.0, abs(wanted))
            got = shared.metrics[name]
            assert abs(got - wanted) <= tolerance, f"{layout}: {name} is {got}, of whole sequences {wanted}"
        biases = [name for name in whole.weights if "correction_bias" in name]
        assert all(torch.equal(whole.weights[name], shared.weights[name]) for name in biases), f"{layout}: a bias"
    whole, shared = results[0]
    assert shared.gradients.keys() == whole.gradients.keys() != set()
    for name, gradient in whole.gradients.items():
        error = np.abs(shared.gradients[name] - gradient).max() / (np.abs(gradient).max() or 1.0)
        assert error <= GRADIENT_TOLERANCE, f"{layout}: the gradient of {name} is off by {error:.1e}"
