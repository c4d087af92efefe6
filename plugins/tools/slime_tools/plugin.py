"""The plugin: verbs around a run, parts of plans, the estimate of memory, rows in parquet and Arrow files and of the
hub, and the live page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slime.contracts import VerbFactory
from slime.events import Subscriber
from slime.hookspecs import hookimpl, later

if TYPE_CHECKING:
    from slime.data.rows import RowReader
    from slime.errors import SlimeError
    from slime.sizes.estimate import MemoryEstimate, PlanPart

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
    return {
        "bubbles": later("slime_tools.bubbles.part:Waiting"),
        "publish": later("slime_tools.publish.part:Publishing"),
        "seconds": later("slime_tools.fit.step:StepSeconds"),
        "disk": later("slime_tools.preflight.disk:Disk"),
    }


@hookimpl
def slime_memory_estimates() -> Mapping[str, Callable[..., MemoryEstimate]]:
    return {"cuda": later("slime_tools.memory.estimate:GpuMemory.of")}


@hookimpl
def slime_advisers() -> Mapping[str, Callable[..., Sequence[SlimeError]]]:
    return {"nearest": later("slime_tools.nearest.nearest:with_ways_out")}


@hookimpl
def slime_row_formats() -> Mapping[str, Callable[[], RowReader]]:
    arrow, parquet = "slime_tools.parquet.arrow:arrow_rows", "slime_tools.parquet.rows:parquet_rows"
    return {".arrow": partial(later, arrow), ".parquet": partial(later, parquet)}


@hookimpl
def slime_prompt_sets() -> Mapping[str, Callable[[str], Path]]:
    return {"hf": later("slime_tools.hub.rows:rows_of")}


@hookimpl
def slime_preflights() -> Mapping[str, Callable[..., None]]:
    return {"hosts": later("slime_tools.preflight.hosts:require_ready")}


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"watch": later("slime_tools.watch.report:Watch")}
