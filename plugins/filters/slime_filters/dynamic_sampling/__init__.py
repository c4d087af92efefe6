"""What slime trains on of all that it samples: the filters `dynamic-sampling` and `overlong` of DAPO, and the buffer
policy `staleness`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import BufferPolicy, SampleFilter
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {"dynamic-sampling": _dynamic_sampling, "overlong": _overlong}


@hookimpl
def slime_buffers() -> Mapping[str, Callable[..., BufferPolicy]]:
    return {"staleness": _staleness}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_filters.dynamic_sampling.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_filters.dynamic_sampling import filter, overlong, staleness_options

    return {
        "filter/dynamic-sampling": filter.Options,
        "filter/overlong": overlong.Options,
        "buffer/staleness": staleness_options.Options,
    }


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """Whether `dynamic-sampling` could keep any group."""
    from slime_filters.dynamic_sampling.filter import Options

    chosen = {cfg.filter.name: cfg.filter.options, **cfg.filter.then}.get("dynamic-sampling")
    if chosen is None:
        return []
    least, given = max(2, chosen.get("min_values", Options.min_values)), cfg.rollout.samples_per_prompt
    if given >= least:
        return []
    what = f"is {given}, and filter 'dynamic-sampling' drops every prompt with fewer than {least} rewards to compare"
    todo = f"Set it to {least} or more, or choose another filter."
    return [SlimeError(what, where="rollout.samples_per_prompt", todo=todo)]


def _dynamic_sampling(**options: Any) -> SampleFilter:
    from slime_filters.dynamic_sampling.filter import DynamicSampling, Options

    return DynamicSampling(Options(**options))


def _overlong(**options: Any) -> SampleFilter:
    from slime_filters.dynamic_sampling.overlong import Options, Overlong

    return Overlong(Options(**options))


def _staleness(**options: Any) -> BufferPolicy:
    from slime_filters.dynamic_sampling.staleness import Staleness
    from slime_filters.dynamic_sampling.staleness_options import Options

    return Staleness(Options(**options))
