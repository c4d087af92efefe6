"""The plugin: verbs around a run, parts of plans, the estimate of memory, rows in parquet and Arrow files and of the
hub, and the live page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slime.contracts import VerbFactory
from slime.events import Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun

if TYPE_CHECKING:
    from slime.compose.check import Rules
    from slime.config.schema import SlimeConfig
    from slime.data.rows import RowReader
    from slime.errors import SlimeError
    from slime.run_dir import RunDir
    from slime.sizes.estimate import MemoryEstimate, PlanPart
    from slime.sizes.model import ModelSizes
    from slime.topology.topology import Topology

VERBS = {
    "check-reward": ("check_reward.command", "try a reward on right, wrong and hostile responses to a prompt set"),
    "completion": ("completion.command", "print a script that completes commands in bash, zsh or fish"),
    "convert": ("convert.command", "checkpoints into other formats: FP8, BF16, Megatron-core, HF"),
    "plan convert": ("convert.plan", "what a conversion would read, write and take"),
    "eval": ("eval.command", "score a run's checkpoint, or an HF folder, on held-out prompts"),
    "replay": ("replay.command", "train again on what a step trained on, or generate it again, and compare"),
    "plan --fit": ("fit.text", "propose layouts that fit the cluster, the fastest first"),
    "probe": ("fit.probe", "one step at full length with random weights: seconds and memory beside the plan's"),
    "drill": ("drill.command", "kill processes of a short run on purpose, and compare it with one that is not hurt"),
    "preflight": ("preflight.hosts", "whether every host has what the run needs; loads nothing"),
    "watch": ("watch.server", "a live page of a run, or of several"),
    "report": ("watch.report", "the same page, frozen into one file"),
    "samples": ("watch.samples", "what the model answered, step by step"),
    "trace": ("trace.command", "what each process did when, as a trace that Perfetto opens"),
    "push": ("hub.push", "put a run's model on the Hugging Face hub"),
    "runs": ("watch.runs", "the runs of a folder: state, step, result"),
}
"""Module and help of each verb."""


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    return {name: VerbFactory(what, f"slime_tools.{module}") for name, (module, what) in VERBS.items()}


@hookimpl
def slime_plan_parts() -> Mapping[str, Callable[..., PlanPart]]:
    return {"bubbles": _bubbles, "publish": _publishing, "seconds": _seconds, "disk": _disk}


@hookimpl
def slime_memory_estimates() -> Mapping[str, Callable[..., MemoryEstimate]]:
    return {"cuda": _memory_of_gpus}


@hookimpl
def slime_advisers() -> Mapping[str, Callable[..., Sequence[SlimeError]]]:
    return {"nearest": _nearest}


@hookimpl
def slime_row_formats() -> Mapping[str, Callable[[], RowReader]]:
    return {".parquet": _parquet, ".arrow": _arrow}


@hookimpl
def slime_prompt_sets() -> Mapping[str, Callable[[str], Path]]:
    return {"hf": _of_the_hub}


@hookimpl
def slime_preflights() -> Mapping[str, Callable[..., None]]:
    return {"hosts": _hosts}


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"watch": _watch}


def _bubbles(sizes: ModelSizes) -> PlanPart:
    from slime_tools.bubbles.part import Waiting

    return Waiting(sizes)


def _publishing(sizes: ModelSizes) -> PlanPart:
    from slime_tools.publish.part import Publishing

    return Publishing(sizes)


def _seconds(sizes: ModelSizes) -> PlanPart:
    from slime_tools.fit.step import StepSeconds

    return StepSeconds(sizes)


def _disk(sizes: ModelSizes) -> PlanPart:
    from slime_tools.preflight.disk import Disk

    return Disk(sizes)


def _memory_of_gpus(sizes: ModelSizes) -> MemoryEstimate:
    from slime_tools.memory.estimate import GpuMemory

    return GpuMemory.of(sizes)


def _nearest(problems: Sequence[SlimeError], given: SlimeConfig, rules: Rules) -> Sequence[SlimeError]:
    from slime_tools.nearest.nearest import with_ways_out

    return with_ways_out(problems, given, rules)


def _parquet() -> RowReader:
    from slime_tools.parquet.rows import parquet_rows

    return parquet_rows


def _arrow() -> RowReader:
    from slime_tools.parquet.arrow import arrow_rows

    return arrow_rows


def _of_the_hub(address: str) -> Path:
    from slime_tools.hub.rows import rows_of

    return rows_of(address)


def _hosts(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    from slime_tools.preflight.hosts import require_ready

    require_ready(topology, run, nodes, writes)


def _watch(run: TrackedRun) -> Subscriber:
    from slime_tools.watch.report import Watch

    return Watch(run)
