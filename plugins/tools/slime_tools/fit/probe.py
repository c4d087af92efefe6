"""`slime probe`: one step of a config at full length, with random weights and token ids, beside what the plan predicts.

    start -> two equal steps -> publish -> two ways off the devices -> a full sequence for each data-parallel rank of
    the engines

The second one of both is measured: the first step compiles kernels and grows memory, the first way off the devices asks
the host for its memory, which took 20 s where the second takes one.

The run's own cluster, packing and turns on shared devices; no prompt, reward or checkpoint takes part.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slime.algo.stages import made_by, run_stages
from slime.arguments import ArgumentParser
from slime.cluster import preflight
from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.group import Cluster, open_cluster
from slime.cluster.ray_starter import ray_here
from slime.compose.compose import Composed, examine
from slime.config.gpus import gpu_of
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import ClusterConfig, ModelConfig, Role, SlimeConfig
from slime.engine_client.client import Engine
from slime.engines.limits import longest_of
from slime.engines.software import software
from slime.objective import Source
from slime.plan.flops import ForwardFlops
from slime.printable import printable
from slime.run_dir import RunDir
from slime.topology.recordings import numbers_told
from slime.topology.topology import read_topology
from slime.train.packing import pack_for
from slime.train.rank import TrainerRank
from slime.types import ADVANTAGES, PREFERENCE, ROLLOUT_LOGPROBS, TrainSample
from slime_tools.fit.estimate import MOVES, Layout, Work, training_seconds
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import GIB, Phase
from stack_dumps.dumps import register

if TYPE_CHECKING:
    from slime.train.rank import Usage


WORDS = ("model.init=random", "train.checkpoint.interval=null")
"""Over the config: nothing is read but config.json, nothing is saved."""
NOT_NEEDED = ("model.path", "data.path", "eval.path", "sft.path", "train.checkpoint.")
"""Keys that a probe does without: files, and what is saved."""
DECODED = 16
"""Tokens that each sequence ends with; the others are its prompt."""
PHASES = {
    "train": (Phase.logprobs, Phase.train, Phase.update),
    "publish": (Phase.publish,),
    "generate": (Phase.generate,),
}
"""What is measured -> phases of the plan."""


@dataclass(frozen=True)
class Measured:
    """One phase.

    Attributes:
        usage: of every trainer rank at its peak in this phase.
    """

    name: str
    seconds: float
    usage: Sequence[Usage] = ()

    @property
    def device(self) -> float | None:
        """Bytes on the fullest device that has a trainer rank."""
        return max((one.device for one in self.usage if one.device is not None), default=None)

    @property
    def host(self) -> float | None:
        """Bytes of all trainer ranks of the fullest host."""
        by_host: dict[str, float] = {}
        for one in self.usage:
            by_host[one.host] = by_host.get(one.host, 0.0) + one.process
        return max(by_host.values(), default=None)


def probe(words: Sequence[str]) -> str:
    """Run the probe of a config and return its table.

    Args:
        words: as for a run.

    Raises:
        SlimeError: the config is wrong, or the step failed.
    """
    composed = examine([*words, *WORDS])
    for error in (*composed.problems, *composed.needs):
        if not error.where.startswith(NOT_NEEDED):
            raise error
    cfg = _without_files(composed.cfg)
    topology = read_topology(cfg)
    began = time.monotonic()
    with ExitStack() as stack:
        here = stack.enter_context(ray_here(topology))
        run = stack.enter_context(RunDir.open(Path(cfg.run.dir) / f"{cfg.run.name}-probe"))
        register(run.logs / "driver.stack")
        require_ready = partial(preflight.require_ready, topology, run, writes=False)
        cluster = stack.enter_context(open_cluster(topology, here, run.logs, require_ready=require_ready))
        step = FullStep(cluster)
        measured = [*step.run(stack, run.logs)]
    lines = [
        *_head(cfg.model, cfg.cluster, step),
        *_table(composed, step, measured),
        "",
        f"in {time.monotonic() - began:.0f} s",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _without_files(cfg: SlimeConfig) -> SlimeConfig:
    """With the published config.json while the model's folder is not there, and no stop strings, which need its
    tokenizer inside the engines."""
    sampled = dataclasses.replace(cfg.rollout.sampling, stop=[])
    scored = dataclasses.replace(cfg.eval.sampling, stop=[])
    return dataclasses.replace(
        cfg,
        model=dataclasses.replace(cfg.model, path=config_folder(cfg.model)),
        rollout=dataclasses.replace(cfg.rollout, sampling=sampled),
        eval=dataclasses.replace(cfg.eval, sampling=scored),
    )


class FullStep:
    """The measured step of an open cluster.

    Attributes:
        longest: tokens of a sequence.
        num_sequences: of the measured step: as many full packs a data-parallel rank as the pipeline has stages.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cfg, self._cluster = cluster.topology.config, cluster
        cfg = self.cfg
        self.hf = read_hf_config(cfg.model.path, cfg.model.num_layers)
        self.longest = self.num_sequences = 0
        self.stage = run_stages(cfg).all[-1]
        self.num_steps = min(2, self.stage.optimizer_steps)
        self._random = np.random.default_rng(cfg.run.seed)

    def run(self, stack: ExitStack, logs: Path) -> Iterator[Measured]:
        cluster, trainers = self._cluster, self._cluster.trainers
        start = time.perf_counter()
        cluster.start()
        cluster.engines.finish()
        stack.enter_context(cluster.calls.naming_causes())
        trainers.all(TrainerRank.init_weights)
        if self.stage.needs(Source.reference):
            trainers.all(TrainerRank.snapshot_reference)
        if self.stage.needs(Source.teacher):
            trainers.all(TrainerRank.hold_teacher)
        if self.stage.estimator is not None:
            trainers.all(TrainerRank.begin_critic, self.stage.name)
        yield Measured("start", time.perf_counter() - start)
        self._measure_out()
        self._train(1)
        trainers.all(TrainerRank.usage)
        yield Measured("train", self._train(2), trainers.all(TrainerRank.usage))
        if cluster.topology.generates:
            yield from self._serve(stack, logs)

    def _measure_out(self) -> None:
        cfg, layout = self.cfg, self._cluster.trainers.layouts[0]
        align, cap = layout.packing_align, cfg.train.max_tokens_per_micro_batch
        sampled, answers = self.stage.reinforces, 2 if self.stage.trains_on_pairs else 1
        self.longest = longest_of(cfg.rollout, cfg.rollout.sampling) if sampled else cap // answers // align * align
        of_pack = max(1, cap // (-(-self.longest // align) * align))
        stages = cfg.train.megatron.get("pipeline_model_parallel_size") or 1
        packs = -(-stages // layout.micro_batch_multiple) * layout.micro_batch_multiple
        self.num_sequences = layout.data_parallel_size * packs * of_pack * self.num_steps

    def _train(self, step: int) -> float:
        """Seconds, as the ranks measure them."""
        trainers, samples = self._cluster.trainers, [self._sample(number) for number in range(self.num_sequences)]
        of_pairs = self.stage.trains_on_pairs
        batches = pack_for(self.cfg, trainers.layouts[0], samples, self.num_steps, whole_attempts=of_pairs)
        values = trainers.train(batches, step, self.stage.name)
        return values["seconds/train"] + values.get("seconds/logprobs", 0.0) + values.get("seconds/critic", 0.0)

    def _sample(self, number: int) -> TrainSample:
        """Random tokens, of which the last three quarters are the response."""
        response = self.longest * 3 // 4
        tokens = self._tokens(self.longest)
        of_engine = np.full(response, -np.log(self.hf["vocab_size"]), np.float32)
        made = dict.fromkeys(made_by(self.stage.objective), of_engine)
        if self.stage.trains_on_pairs:
            preference = {PREFERENCE: np.full(response, 1 - 2 * (number % 2), np.float32)}
            return TrainSample(tokens, np.ones(response, np.float32), preference | made, number // 2)
        if not self.stage.reinforces:
            return TrainSample(tokens, np.ones(response, np.float32), made)
        advantages = np.full(response, self._random.normal(), np.float32)
        columns = {ADVANTAGES: advantages, ROLLOUT_LOGPROBS: of_engine}
        columns |= dict.fromkeys((recording.name for recording in numbers_told()), of_engine)
        return TrainSample(tokens, np.ones(response, np.float32), columns | made)

    def _tokens(self, count: int) -> Any:
        return self._random.integers(0, self.hf["vocab_size"], count)

    def _serve(self, stack: ExitStack, logs: Path) -> Iterator[Measured]:
        cluster, sharing = self._cluster, DeviceSharing(self._cluster)
        trainers = cluster.trainers
        sharing.for_weights()
        trainers.all(TrainerRank.usage)
        start = time.perf_counter()
        trainers.publish(cluster.engines.endpoints, 1)
        yield Measured("publish", time.perf_counter() - start, trainers.all(TrainerRank.usage))
        moved = sharing.for_generation()
        if "seconds/offload" in moved:
            sharing.for_weights()
            yield Measured("offload", sharing.for_generation()["seconds/offload"])
        trainers.all(TrainerRank.usage)
        runner = stack.enter_context(asyncio.Runner())
        start = time.perf_counter()
        runner.run(cluster.calls.watched(self._generate(logs), "generating"))
        yield Measured("generate", time.perf_counter() - start, trainers.all(TrainerRank.usage))

    async def _generate(self, logs: Path) -> None:
        cfg, decoded = self.cfg, min(DECODED, self.longest // 2)
        topology = self._cluster.topology
        serving = software(topology.cluster.device, topology.config.rollout.backend)
        clients = [
            serving.client(endpoint, cfg.rollout.request_timeout_s, log=logs / f"engine-{index}.log")
            for index, endpoint in enumerate(self._cluster.engines.endpoints)
        ]
        asked: list[Engine] = []
        for client, group in zip(clients, topology.group_of_engine, strict=True):
            asked += [client] * group.dp
        if topology.works_in_pairs:
            decoding = sum(group.dp for group in topology.group_of_engine if group.role is Role.decode)
            asked = [await serving.pairs((engine.role for engine in topology.engines), clients)] * decoding
        sampling = {"temperature": 1.0, "max_new_tokens": decoded, "ignore_eos": True}
        prompts = [self._tokens(self.longest - decoded).tolist() for _ in asked]
        try:
            await asyncio.gather(*(one.generate(ids, sampling) for one, ids in zip(asked, prompts, strict=True)))
        finally:
            for client in clients:
                await client.close()


def _head(model: ModelConfig, cluster: ClusterConfig, step: FullStep) -> Iterator[str]:
    steps = f"{step.num_steps} optimizer step{'s' if step.num_steps > 1 else ''}"
    steps += f" in each of {step.stage.epochs} epochs" if step.stage.epochs > 1 else ""
    yield f"{model.name} on {cluster.name}, random weights: {steps} of {step.num_sequences:,} sequences of"
    yield f"{step.longest:,} tokens, after an equal one; then one as long for every data-parallel rank of the engines"
    yield ""


def _table(composed: Composed, step: FullStep, measured: Sequence[Measured]) -> Iterator[str]:
    plan = composed.memory.plan if isinstance(composed.memory, GpuMemory) else None
    estimated = _estimated(plan, step) if plan and gpu_of(plan.cfg.cluster) else {}
    heads = {"seconds": 10, "estimated": 11, "device, GiB": 13, "predicted": 11, "host, GiB": 11, "predicted ": 12}
    yield f"{'':<10}" + "".join(f"{head.rstrip():>{width}}" for head, width in heads.items())
    for one in measured:
        device, host = _predicted(plan, one.name) if plan else (None, None)
        cells = [_gib(one.device, 13), _gib(device, 11), _gib(one.host, 11), _gib(host, 12)]
        yield f"{one.name:<10}{one.seconds:>10.1f}{_number(estimated.get(one.name), 11)}{''.join(cells)}"
    yield ""
    yield "device: all processes on the fullest one that has a trainer; host: the trainers of the fullest one"


def _estimated(plan: MemoryPlan, step: FullStep) -> dict[str, float]:
    longest = step.longest
    work = Work(step.num_sequences, longest, step.num_steps, epochs=step.stage.epochs, most=longest)
    parts = training_seconds(work, ForwardFlops(plan.model, plan.weights, longest), Layout.of(plan), plan.trainers)
    moves = parts.pop(MOVES, 0.0)
    return {"train": sum(parts.values()), "offload": moves / 2}


def _predicted(plan: MemoryPlan, name: str) -> tuple[float | None, float | None]:
    """Bytes of the fullest device with a trainer, and of the trainers of the fullest host."""
    if name not in PHASES:
        return None, None
    devices = [place.table.total(phase) for place in plan.devices if place.stage is not None for phase in PHASES[name]]
    hosts = [
        place.table.total(phase) - place.table.rows.get("engine processes", {}).get(phase, 0.0)
        for place in plan.hosts
        for phase in PHASES[name]
    ]
    return max(devices), max(hosts)


def _gib(num_bytes: float | None, width: int) -> str:
    return _number(None if num_bytes is None else num_bytes / GIB, width)


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.1f}"


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Runs one step at full length on the real config, with random weights and no data, in a directory that is removed."""
    parser.add_keys()


def run(args: Namespace) -> None:
    print(printable(probe(args.keys)))
