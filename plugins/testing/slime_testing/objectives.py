"""The contract of an objective, checked on a real model with real ranks: for a plugin's own tests.

from slime_testing.objectives import check_objective

def test_contract() -> None:
    check_objective("bounded", "models/tiny", options={"bound": 0.5})
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slime import plugins
from slime.algo.stages import objective_of, run_stages
from slime.compose.objective import objective_problems
from slime.config.paths import resolve
from slime.config.schema import AlgoConfig, SlimeConfig
from slime.objective import Column, Source, TrainsOn
from slime.types import IS_CURRENT, PREFERENCE, TrainSample
from slime_testing.estimators import check_idle_options
from slime_testing.models import write_checkpoint
from slime_testing.plugins import UNKNOWN_OPTION, check_choice, check_light
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import Trained, compare, record_gradients

NUM_SAMPLES = 12
TEACHER = "teacher"
"""Folder of another model than the one that learns, for objectives that ask one."""
OPTIMIZER_STEPS = 2
ASKED = """
from slime.algo.stages import objective_of
from slime.config.schema import AlgoConfig
objective = objective_of(AlgoConfig(name={name!r}, options={options!r}))
objective.metrics([column.name for column in objective.needs])
"""
"""What `slime plan` asks of it, which is to be light."""
MASKED_VALUES = (np.nan, np.inf, -np.inf)


@dataclass(frozen=True)
class Way:
    """One way to train on the same samples.

    Attributes:
        megatron: `train.megatron`.
        max_tokens: of a micro-batch.
        spoils: the columns hold what is not finite where the loss mask is 0.
        of_entropies: these have their gradient, whatever the objective says (`slime.objective.Objective`).
    """

    megatron: Mapping[str, int]
    max_tokens: int = 512
    spoils: bool = False
    of_entropies: bool = False


ALONE = "one rank, one micro-batch"
WAYS: Mapping[int, Mapping[str, Way]] = {
    1: {
        ALONE: Way({}),
        "many micro-batches": Way({}, max_tokens=48),
        "columns not finite at masked tokens": Way({}, spoils=True),
        "with the gradient of entropies": Way({}, of_entropies=True),
    },
    2: {
        "data parallelism": Way({}),
        "context parallelism": Way({"context_parallel_size": 2}),
        "tensor parallelism": Way({"tensor_model_parallel_size": 2}),
        "pipeline parallelism": Way({"pipeline_model_parallel_size": 2}),
    },
}
"""By number of ranks."""


def check_objective(name: str, model: str, **algo: Any) -> None:
    """Assert that objective `name` is well installed, and that its loss is one of tokens, not of micro-batches.

    A rollout of two optimizer steps gives the same metrics and gradients, but for the order of sums, in every `WAYS`:
    any packing, data, context, tensor and pipeline parallelism, and whatever masked tokens hold. An objective whose
    loss depends on the entropies does not say otherwise.

    Args:
        model: folder with the config.json of a small model of an installed family, or `pkg://package/folder`; at least
            two layers and two attention heads.
        algo: keys of `algo`, for instance `options={"bound": 0.5}` or `clip_low=0.1`.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: no objective of that name is installed, or its options are wrong.
    """
    installed, options = plugins.load(), algo.get("options", {})
    check_choice(installed.objectives, name)
    check_light(installed.objectives.get(name), ASKED.format(name=name, options=options))
    for problem in objective_problems(AlgoConfig(name=name, **algo), installed):
        raise problem
    check_idle_options(f"algo/{name}", objective_of(AlgoConfig(name=name, **algo)))
    unknown = AlgoConfig(name=name, **{**algo, "options": {**options, UNKNOWN_OPTION: None}})
    assert any(objective_problems(unknown, installed)), f"algo '{name}' takes options it does not know"
    hf = json.loads((resolve(model) / "config.json").read_text())
    with tempfile.TemporaryDirectory(prefix="objective-") as scratch:
        folder = Path(scratch) / "model"
        write_checkpoint(hf, folder)
        write_checkpoint(hf, folder / TEACHER, seed=1)
        alone: Trained | None = None
        for num_ranks, ways in WAYS.items():
            results = run_ranks(train_ways, num_ranks, hf["model_type"], folder, name, algo, ways, timeout_s=110)
            for way in ways:
                alone = alone or results[0][way]
                compare(way, [result[way] for result in results], alone)
        assert alone, "one rank comes first"
        assert alone.history[0]["grad_norm"] > 0, f"algo '{name}' teaches nothing: all gradients are 0"


def train_ways(
    rank: Rank, family: str, folder: Path, name: str, algo: Mapping[str, Any], ways: Mapping[str, Way]
) -> dict[str, Trained]:
    """Runs in every rank."""
    trained = {}
    for told, way in ways.items():
        trained[told] = _train(rank, family, folder, AlgoConfig(name=name, **algo), way)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return trained


def _train(rank: Rank, family: str, folder: Path, algo: AlgoConfig, way: Way) -> Trained:
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig(algo=algo)
    cfg.model.family, cfg.model.path, cfg.train.megatron = family, str(folder), dict(way.megatron)
    cfg.algo.teacher.path = str(folder / TEACHER)
    cfg.run.num_steps = cfg.sft.num_steps = 1
    cfg.train.steps_per_rollout = OPTIMIZER_STEPS
    cfg.train.optimizer = {"lr": 1e-3, "adam_eps": 1e-6}
    cfg.sft.lr = 1e-3
    stage = run_stages(cfg).all[-1]
    trainer = Trainer(cfg, *rank)
    if way.of_entropies:
        _give_entropies_gradients(trainer)
    trainer.init_weights()
    trainer.snapshot_reference()
    if stage.needs(Source.teacher):
        trainer.hold_teacher()
    gradients = record_gradients(trainer)
    batches = pack(
        samples_for(stage.objective, trainer.hf["vocab_size"], spoils=way.spoils),
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=way.max_tokens * (2 if stage.trains_on_pairs else 1),
        loss_mean=algo.loss_mean,
        max_response_tokens=40,
        num_optimizer_steps=OPTIMIZER_STEPS,
        micro_batch_multiple=trainer.micro_batch_multiple,
        whole_attempts=stage.trains_on_pairs,
    )
    values = trainer.train([batch.share(trainer.data_parallel_rank) for batch in batches], 1, stage.name)
    history = {name: value for name, value in values.items() if not name.startswith(("seconds/", "num_tokens"))}
    return Trained({}, [history], gradients)


def _give_entropies_gradients(trainer: Any) -> None:
    """Whatever stage begins."""
    enter = trainer._enter

    def enter_and_give(stage: Any) -> None:
        enter(stage)
        for module in trainer.model.modules:
            module.entropy_gradient = True

    trainer._enter = enter_and_give


def samples_for(objective: Any, vocab_size: int, *, spoils: bool = False) -> Sequence[TrainSample]:
    """Recorded samples with the columns that an objective reads from the rollout; those of its own hold random numbers,
    ids are of random tokens, and numbers beside ids are logarithms of numbers that add up to less than 1.

    Args:
        spoils: put NaN and infinities where the loss mask is 0.
    """
    generator, spoiler = np.random.default_rng(3), np.random.default_rng(4)
    asked = [column for column in objective.needs if column.source in (Source.rollout, Source.data)]
    found: list[TrainSample] = []
    for sample in recorded_samples(NUM_SAMPLES, vocab_size):
        count, known = sample.num_response_tokens, dict(sample.columns)
        known[IS_CURRENT] = np.arange(count, dtype=np.float32) % 2
        drawn = {column.name: _drawn(column, count, vocab_size, generator) for column in asked}
        of_rollout = known if objective.trains_on is TrainsOn.rollouts else {}
        known[PREFERENCE] = np.full(count, 1 - 2 * (len(found) % 2), np.float32)
        columns = {**of_rollout, **{name: known.get(name, values) for name, values in drawn.items()}}
        if spoils:
            masked = sample.loss_mask == 0
            bad = spoiler.choice(MASKED_VALUES, count).astype(np.float32)
            columns = {name: _spoilt(values, masked, bad) for name, values in columns.items()}
        attempt = len(found) // 2 if objective.trains_on is TrainsOn.pairs else None
        found.append(TrainSample(sample.tokens, sample.loss_mask, columns, attempt))
    return found


def _drawn(column: Column, count: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
    if column.ids:
        rows = [generator.permutation(vocab_size)[: column.width] for _ in range(count)]
        return np.array(rows, np.int32).reshape(count, -1)
    if column.width:
        return np.log(generator.dirichlet(np.ones(column.width + 1), size=count)[:, 1:]).astype(np.float32)
    return generator.normal(size=count).astype(np.float32)


def _spoilt(values: np.ndarray, masked: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """With what is not finite at masked tokens; of ids with those of no token."""
    found = values.copy()
    is_ids = np.issubdtype(values.dtype, np.integer)
    found[masked] = np.iinfo(values.dtype).max if is_ids else bad[masked].reshape(-1, *[1] * (values.ndim - 1))
    return found
