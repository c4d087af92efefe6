"""From a command line to a checked `SlimeConfig`, with Hydra; nothing is written and no process is started."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins as HydraPlugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime import plugins as slime_plugins
from slime.config import groups as config_groups
from slime.config.check import check
from slime.config.derive import derive
from slime.config.groups import NO_RECIPE, Groups
from slime.config.keys import own_keys, suggest
from slime.config.needs import needs
from slime.config.overrides import CommandLine, add_choices_of_model, read_command_line
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError, did_you_mean
from slime.plan.memory import MemoryPlan


@dataclass(frozen=True)
class Composed:
    """A composed config.

    Attributes:
        problems: what is wrong with it.
        needs: what a run of it needs that is not here.
        choices: group -> option.
        memory: what its devices and hosts will hold, where that is known.
    """

    cfg: SlimeConfig
    problems: Sequence[SlimeError]
    needs: Sequence[SlimeError]
    choices: dict[str, str]
    memory: MemoryPlan | None = None


class PluginSearchPath(SearchPathPlugin):
    """Adds the plugins' config folders behind slime's own. Registered by hand: the `hydra_plugins` namespace, Hydra's
    own way to find such classes, would put these folders into every Hydra program of the environment."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for plugin in slime_plugins.load().sound:
            for path in plugin.config_paths if plugin.distribution != slime_plugins.BUILTIN else ():
                search_path.append(provider=plugin.distribution, path=path)


def compose(argv: Sequence[str]) -> SlimeConfig:
    """The whole run that `argv` describes, with every value in place and every rule checked.

    Args:
        argv: `key=value` and `[+]group=option` items.

    Raises:
        SlimeError: the first thing that is wrong; `slime plan` lists all.
    """
    return ready(examine(argv))


def ready(composed: Composed) -> SlimeConfig:
    """The config, if it can run."""
    if wrong := [*composed.problems, *composed.needs]:
        first, *others = wrong
        more = f" ('slime plan' shows {len(others)} more)" if others else ""
        raise SlimeError(first.what, where=first.where, todo=first.todo + more)
    return composed.cfg


def examine(argv: Sequence[str]) -> Composed:
    """Like `compose`, but rules that the run breaks are listed instead of raised."""
    plugins = slime_plugins.load()
    plugins.require_sound()
    groups = config_groups.scan(plugins)
    line = read_command_line(argv, groups)
    add_choices_of_model(line, groups)
    return checked(merge(line, groups), line, plugins)


def checked(cfg: SlimeConfig, line: CommandLine, plugins: slime_plugins.Plugins) -> Composed:
    """`cfg`, completed, and held against every rule."""
    derive(cfg, plugins)
    found = check(cfg, plugins)
    return Composed(cfg, found.problems, [] if found.problems else needs(cfg), line.choices, found.memory)


def to_yaml(cfg: SlimeConfig) -> str:
    """The resolved config as YAML, every key in the schema's order."""
    return OmegaConf.to_yaml(OmegaConf.structured(cfg))


@functools.cache
def _introduce() -> None:
    """Make slime's schema and the plugins' folders known to Hydra."""
    HydraPlugins.instance().register(PluginSearchPath)
    ConfigStore.instance().store(name="schema", node=SlimeConfig)


def merge(line: CommandLine, groups: Groups, name: str = "config") -> SlimeConfig:
    """What the config `name` of Hydra lists, in its order, under the command line."""
    _introduce()
    try:
        with hydra.initialize_config_module("slime.conf", job_name="slime", version_base="1.3"):
            merged = hydra.compose(name, overrides=line.overrides)
        _require_complete(merged, line, groups)
        return cast(SlimeConfig, OmegaConf.to_object(merged))
    except MissingConfigException as error:
        raise _missing_option(error, line, groups) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _in_one_line(error) from error


def _missing_option(error: MissingConfigException, line: CommandLine, groups: Groups) -> SlimeError:
    """A file's own `defaults` names an option that nobody ships (the command line's choices were checked before)."""
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    where = f"recipe {line.choices['recipe']}" if line.choices["recipe"] != NO_RECIPE else ""
    return SlimeError(f"there is no {group}={name}", where=where, todo=did_you_mean(name, groups.names(group)))


def _require_complete(merged: DictConfig, line: CommandLine, groups: Groups) -> None:
    unset = OmegaConf.missing_keys(merged)
    missing = [name for name in own_keys() if name in unset]
    if not missing:
        return
    if "reward.name" in missing:
        raise SlimeError("no reward is chosen", where=_no_recipe(line, groups), todo=groups.choose("reward"))
    todo = f"Set it: {' '.join(f'{name}=...' for name in missing)}."
    raise SlimeError(f"not set: {', '.join(missing)}", where=_no_recipe(line, groups), todo=todo)


def _no_recipe(line: CommandLine, groups: Groups) -> str:
    """Says that no recipe fills the gap, and which ones there are for this model."""
    model, wanted = line.choices["model"], f"{line.choices['model']}@{line.choices['cluster']}"
    recipes = [name for name in groups.names("recipe") if name.startswith(f"{model}@")]
    if line.choices["recipe"] != NO_RECIPE or wanted in recipes:
        return ""
    return f"there is no recipe {wanted}" + (f" (only {', '.join(recipes)})" if recipes else "")


def _in_one_line(error: Exception) -> SlimeError:
    """Hydra's and OmegaConf's several lines as what, where and what to do."""
    cause = _omegaconf_cause(error)
    if cause is None:
        return SlimeError(" ".join(str(error).split()), todo="Correct that file or argument.")
    key, file = _key_of(cause), _file_of(error)
    fact = (cause.msg or str(cause)).splitlines()[0].rstrip(".")
    if re.match(r"Key '.*' (is )?not in|Could not override", fact):
        return SlimeError(f"there is no key '{key}'", where=file, todo=_unknown_key(key))
    known = own_keys().get(key)
    todo = f"It takes {known.type}: {known.doc}" if known else "docs/config.md lists every key."
    return SlimeError(f"{key}: {fact}" if key else fact, where=file, todo=todo)


def _unknown_key(key: str) -> str:
    top = key.split(".")[0]
    if top in own_keys() or any(name.startswith(f"{top}.") for name in own_keys()):
        return suggest(key)
    sections = {name.split(".")[0] for name in own_keys()}
    return f"{did_you_mean(top, sections)} (A file that sets several sections begins with '# @package _global_'.)"


def _omegaconf_cause(error: BaseException | None) -> OmegaConfBaseException | None:
    while error is not None and not isinstance(error, OmegaConfBaseException):
        error = error.__cause__ or error.__context__
    return error


def _key_of(cause: OmegaConfBaseException) -> str:
    full_key: Any = cause.full_key or cause.key
    return str(full_key) if full_key is not None else ""


def _file_of(error: Exception) -> str:
    match = re.match(r"In '([^']+)'", str(error))
    return f"{match[1]}.yaml" if match else ""
