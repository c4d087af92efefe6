"""The contributions of slime itself, through the same hooks as any plugin's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.algo.advantages import GroupMean
from slime.algo.grpo import Grpo
from slime.algo.sft import Sft
from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl, later
from slime.types import Decision, Group, Task

if TYPE_CHECKING:
    from slime.contracts import BufferPolicy, Program, Responder, SampleFilter, Tracker
    from slime.estimator import Estimator
    from slime.objective import Objective


class KeepAll:
    """Filter `none`: keeps every group with at least two values, or with the one value of its one sample."""

    def decide(self, group: Group) -> Decision:
        if len(group.rewards) < min(2, len(group.samples)):
            return Decision(keep=False, reason="too_few_values")
        return Decision(keep=True)


class Single:
    """Program `single`: one response to the prompt."""

    in_driver = True

    async def run(self, task: Task, model: Responder) -> None:
        await model.respond()


@dataclass
class FifoOptions:
    max_groups: int | None = None
    """Groups held at most; null holds all."""


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"single": Single}


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {"none": KeepAll, "function": later("slime.functions.filters:own_filter")}


@hookimpl
def slime_buffers() -> Mapping[str, Callable[..., BufferPolicy]]:
    return {"fifo": later("slime.sampling.buffer:FifoBuffer"), "function": later("slime.functions.buffers:own_buffer")}


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"grpo": Grpo, "sft": Sft, "function": later("slime.functions.objectives:own_objective")}


@hookimpl
def slime_estimators() -> Mapping[str, Callable[..., Estimator]]:
    return {"grpo": GroupMean, "function": later("slime.functions.estimators:own_estimator")}


@hookimpl
def slime_trackers() -> Mapping[str, Callable[..., Tracker]]:
    return {"function": later("slime.functions.trackers:own_tracker")}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    return {
        "train": VerbFactory("train, or continue a run; may be left out", "slime.verbs.train"),
        "plan": VerbFactory("what would run where, and what is wrong; starts nothing", "slime.verbs.plan"),
        "keys": VerbFactory("every key of a run: type, default, meaning", "slime.verbs.keys"),
        "plugins": VerbFactory("what is installed and what each plugin brings", "slime.verbs.plugins"),
    }


@hookimpl
def slime_transports() -> Mapping[str, Callable[..., Any]]:  # the contract knows of topologies, which know plugins
    return {"ipc": later("slime.weights.transports:SharedMemoryTransport")}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime.functions import buffers, estimators, filters, objectives, trackers

    return {
        "filter/function": filters.FilterOptions,
        "buffer/fifo": FifoOptions,
        "buffer/function": buffers.BufferOptions,
        "algo/function": objectives.ObjectiveOptions,
        "estimator/function": estimators.EstimatorOptions,
        "tracker/function": trackers.TrackerOptions,
    }


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ("pkg://slime.conf",)
