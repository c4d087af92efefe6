"""DAPO's dynamic sampling for slime: the filter `dynamic-sampling`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slime.contracts import SampleFilter
from slime.hookspecs import hookimpl


@hookimpl
def slime_filters() -> Mapping[str, Callable[..., SampleFilter]]:
    return {"dynamic-sampling": _dynamic_sampling}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_plugin_dynamic_sampling.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_plugin_dynamic_sampling.filter import Options

    return {"filter/dynamic-sampling": Options}


def _dynamic_sampling(**options: Any) -> SampleFilter:
    from slime_plugin_dynamic_sampling.filter import DynamicSampling, Options

    return DynamicSampling(Options(**options))
