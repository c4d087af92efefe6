"""The hooks a plugin may implement (pluggy project name `slime`, entry-point group `slime`).

Hooks that contribute things chosen by name return `{name: factory}`; a factory is called late, with the options
of the config as keywords, and is where heavy imports belong. `docs/hooks.md` is generated from this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.contracts import BufferPolicy, ModelBridge, RewardModel, SampleFilter, Tracker

hookspec = pluggy.HookspecMarker("slime")
hookimpl = pluggy.HookimplMarker("slime")

Factory = Callable[..., Any]


class SlimeHooks(Protocol):
    """Every hook, with its exact signature."""

    @hookspec
    def slime_models(self) -> Mapping[str, Callable[[], ModelBridge]]:
        """Model families: `{HF model_type: factory of a ModelBridge}`."""

    @hookspec
    def slime_rewards(self) -> Mapping[str, Callable[..., RewardModel]]:
        """Rewards: `{name: factory}`, selected by `reward=<name>`; `reward.options` become the factory's keywords."""

    @hookspec
    def slime_filters(self) -> Mapping[str, Callable[..., SampleFilter]]:
        """Filters: `{name: factory}`, selected by `filter=<name>`; `filter.options` become the factory's keywords."""

    @hookspec
    def slime_buffers(self) -> Mapping[str, Callable[..., BufferPolicy]]:
        """Buffer policies: `{name: factory}`, selected by `buffer=<name>`; `buffer.options` become keywords."""

    @hookspec
    def slime_trackers(self) -> Mapping[str, Callable[..., Tracker]]:
        """Trackers: `{name: factory}`, selected by `observe.trackers.<name>`, whose keys become keywords."""

    @hookspec
    def slime_config_paths(self) -> Sequence[str]:
        """Importable folders with config groups, as `pkg://package.conf` (the folder needs an `__init__.py`)."""

    @hookspec
    def slime_config_schemas(self) -> Mapping[str, type]:
        """Dataclasses that type a contribution's options: `{"reward/<name>": MyOptions, "filter/<name>": ...}`."""

    @hookspec
    def slime_check(self, cfg: SlimeConfig) -> Sequence[str]:
        """What is wrong with this run as far as the plugin is concerned, a sentence each; before any process starts."""
