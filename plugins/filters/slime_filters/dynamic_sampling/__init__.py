"""The filters `dynamic-sampling` and `overlong` of DAPO, and the buffer policy `staleness`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slime.contracts import BufferPolicy, SampleFilter
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {
        "dynamic-sampling": functools.partial(_made, "filter", "DynamicSampling"),
        "overlong": functools.partial(_made, "overlong", "Overlong"),
    }


@hookimpl
def slime_buffers() -> Mapping[str, Callable[..., BufferPolicy]]:
    return {"staleness": functools.partial(_made, "staleness", "Staleness")}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_filters.dynamic_sampling.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_filters.dynamic_sampling import filter, overlong, staleness

    return {
        "filter/dynamic-sampling": filter.DynamicSamplingOptions,
        "filter/overlong": overlong.OverlongOptions,
        "buffer/staleness": staleness.StalenessOptions,
    }


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """`dynamic-sampling` must be able to keep a group."""
    from slime_filters.dynamic_sampling.filter import DynamicSamplingOptions

    chosen = {cfg.filter.name: cfg.filter.options, **cfg.filter.then}.get("dynamic-sampling")
    if chosen is None:
        return []
    least, given = max(2, chosen.get("min_values", DynamicSamplingOptions.min_values)), cfg.rollout.samples_per_prompt
    if given >= least:
        return []
    what = f"is {given}, and filter 'dynamic-sampling' drops every prompt with fewer than {least} rewards to compare"
    todo = f"Set it to {least} or more, or choose another filter."
    return [SlimeError(what, where="rollout.samples_per_prompt", todo=todo)]


def _made(module: str, kind: str, **options: Any) -> Any:
    """An object of a class here, which takes its options."""
    here = import_module(f"slime_filters.dynamic_sampling.{module}")
    return getattr(here, kind)(getattr(here, f"{kind}Options")(**options))
