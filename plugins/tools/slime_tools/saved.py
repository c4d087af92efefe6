"""The config of a run that was, read from its `config.yaml`, under other words of a command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from slime import plugins as slime_plugins
from slime.compose import groups as config_groups
from slime.compose.compose import merge, over
from slime.compose.groups import NO_RECIPE, UNSET, Groups
from slime.compose.overrides import CommandLine, read_command_line
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.plugins import Plugins
from slime.run_config import read_config

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


def line_of(words: Sequence[str], groups: Groups) -> CommandLine:
    """The words behind the run's name. Raises SlimeError where one is the whole config of a run."""
    line = read_command_line(words, groups)
    if line.base:
        raise SlimeError("is the whole config of a run", where=line.base.word, todo="Name its directory instead.")
    return line


def merged(saved: Saved, line: CommandLine, groups: Groups) -> SlimeConfig:
    """The groups as in training, over the saved values, under the command line. Raises SlimeError where they do not
    go together."""
    line.choices = {"cluster": UNSET, "recipe": NO_RECIPE, **line.choices}
    return merge(line, groups, over(saved))[1]
