"""The config of a run that was, read from its `config.yaml`, under other words of a command line."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from slime import plugins as slime_plugins
from slime.compose import groups as config_groups
from slime.compose.compose import merge
from slime.compose.groups import DECLARED, NO_RECIPE, UNSET, Groups
from slime.compose.overrides import CommandLine
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.plugins import Plugins
from slime.run_config import read_config

CHOOSING = ("task", "recipe")
"""Groups whose options may choose of the others; they come last."""

Saved = dict[str, Any]


def installed() -> tuple[Plugins, Groups]:
    """The plugins and the choices that they bring; SlimeError if a plugin is broken."""
    plugins = slime_plugins.load()
    plugins.require_sound()
    return plugins, config_groups.scan(plugins)


def read_saved(config: Path, sections: Collection[str]) -> Saved:
    """The file, which has at least these sections. Raises SlimeError if it is damaged, or of another program."""
    saved = read_config(config)
    if not all(isinstance(saved.get(name), dict) for name in sections):
        todo = "Bring the file back, or evaluate the run's export by its folder."
        raise SlimeError("this is not the config of a run", where=str(config), todo=todo)
    return saved


def merged(saved: Saved, line: CommandLine, groups: Groups) -> SlimeConfig:
    """The groups as in training, over the saved values, under the command line. Raises SlimeError where they do not
    go together."""
    unset = {"reward": UNSET, "cluster": UNSET, "model": UNSET, "algo": "grpo", "buffer": "fifo"}
    ordered = [*(group for group in DECLARED if group not in CHOOSING), *CHOOSING]
    chosen = [{group: unset.get(group, "none")} for group in ordered]
    store = ConfigStore.instance()
    store.store(name="saved", node=saved)
    store.store(name="of_saved", node={"defaults": ["schema", "saved", *chosen, "_self_"]})
    line.choices = {"cluster": UNSET, "recipe": NO_RECIPE, **line.choices}
    return merge(line, groups, "of_saved")[1]
