"""The plugin: filters of DAPO, a buffer policy, and rollouts that go on while trainers work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import BufferPolicy, SampleFilter
from slime.errors import SlimeError
from slime.hookspecs import Factory, hookimpl, later
from slime_filters.dynamic_sampling.filter import DynamicSampling
from slime_filters.dynamic_sampling.overlong import Overlong
from slime_filters.dynamic_sampling.staleness import Staleness

if TYPE_CHECKING:
    from slime.config.schema import FilterConfig, RolloutConfig


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {"dynamic-sampling": DynamicSampling, "overlong": Overlong}


@hookimpl
def slime_buffers() -> Mapping[str, Callable[..., BufferPolicy]]:
    return {"staleness": Staleness}


@hookimpl
def slime_rollouts() -> Mapping[str, Factory]:
    return {"ahead": later("slime_filters.ahead.rollout:ahead")}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_filters.dynamic_sampling.conf"]


@hookimpl
def slime_check(filter: FilterConfig, rollout: RolloutConfig) -> Sequence[SlimeError]:
    """`dynamic-sampling` must be able to keep a group."""
    chosen = {filter.name: filter.options, **filter.then}.get("dynamic-sampling")
    if chosen is None:
        return []
    least, given = max(2, chosen.get("min_values", DynamicSampling.min_values)), rollout.samples_per_prompt
    if given >= least:
        return []
    what = f"is {given}, and filter 'dynamic-sampling' drops every prompt with fewer than {least} rewards to compare"
    todo = f"Set it to {least} or more, or choose another filter."
    return [SlimeError(what, where="rollout.samples_per_prompt", todo=todo)]
