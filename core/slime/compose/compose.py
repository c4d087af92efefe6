"""From a command line to a checked `SlimeConfig`, with Hydra; nothing is written and no process is started."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins as HydraPlugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from slime import plugins as slime_plugins
from slime.compose import groups as config_groups
from slime.compose.check import Checked, check, value_problems
from slime.compose.chosen import choices_of
from slime.compose.data_files import overlap_problems
from slime.compose.derive import derive
from slime.compose.groups import DECLARED, NO_RECIPE, NO_TASK, UNSET, Groups, bad_yaml
from slime.compose.idle import Composition, idle_keys
from slime.compose.learning import rate_warnings
from slime.compose.needs import needs
from slime.compose.objective import objective_problems
from slime.compose.overrides import (
    OF_START,
    REMOVED,
    CommandLine,
    add_choices_of_model,
    of_directory,
    read_command_line,
    take_base,
)
from slime.compose.run_file import RunFile
from slime.config.extended import SECTIONS, extended
from slime.config.keys import default_config, open_section, own_keys, suggest, value_of
from slime.config.schema import RunConfig, SlimeConfig
from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.run_config import changes, container, flat
from slime.topology.placement import SAVER
from slime.topology.topology import read_topology

MAX_FACT = 200
"""Characters of another library's sentence, which may quote a whole section."""


@dataclass(kw_only=True)
class Composed(Checked):
    """A composed config, and what is wrong with it.

    Attributes:
        needs: what a run of it needs that is not here.
        choices: group -> option.
        run_files: names of those that it is made of.
        notes: what is said of it in any case.
    """

    cfg: SlimeConfig
    needs: Sequence[SlimeError]
    choices: dict[str, str]
    run_files: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def yaml(self) -> str:
        return OmegaConf.to_yaml(OmegaConf.structured(self.cfg))

    @property
    def chosen(self) -> dict[str, str]:
        """Kind -> name of what it takes of the installed plugins."""
        algo, choices = self.cfg.algo, choices_of(self.cfg)
        main = {"model": self.cfg.model.family, "algo": algo.name, "estimator": algo.advantage}
        return main | {choice.label: choice.name for choice in choices if choice.kind != "tracker"}


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
    return ready(examine(argv)).cfg


def ready(composed: Composed) -> Composed:
    """The same, if it can run.

    Raises:
        SlimeError: the first thing that is wrong or missing.
    """
    if wrong := [*composed.problems, *composed.needs]:
        first, *others = wrong
        more = f" ('slime plan' shows {len(others)} more)" if others else ""
        raise SlimeError(first.what, where=first.where, todo=first.todo + more)
    return composed


def examine(argv: Sequence[str]) -> Composed:
    """Like `compose`, but rules that the run breaks are listed instead of raised."""
    plugins = slime_plugins.load()
    plugins.require_sound()
    groups = config_groups.scan(plugins)
    line = read_command_line(argv, groups)
    if line.saved:
        take_base(line, line.saved)
        files, given = merge(line, groups, over(line.saved))
    else:
        add_choices_of_model(line, groups)
        files, given = merge(line, groups)
    composed = checked(given, line, plugins)
    named, problems = {problem.where for problem in composed.problems}, composed.problems
    if not any(objective_problems(composed.cfg.algo, plugins)):
        run, layer = Composition(composed.cfg), functools.partial(_layer, files, given, line, groups, plugins)
        recipes = () if line.base else dict.fromkeys((line.choices["recipe"], NO_RECIPE))
        below = (found for recipe in recipes for found in layer({"recipe": recipe}))
        preset = layer({"recipe": NO_RECIPE, "algo": line.choices["algo"]}) if "algo" in line.choices else ()
        idle = idle_keys(Composition(given), run, below, preset)
        if line.base:  # its run had them
            set_here = {key for key, _ in line.values}
            idle = (problem for problem in idle if problem.where in set_here)
        problems += [problem for problem in idle if problem.where not in named]
        problems += overlap_problems(composed.cfg.eval, composed.cfg.data) if run.reinforces else ()
        if not problems:
            typed = {key for key, _ in line.values}
            composed.warnings += rate_warnings(composed.cfg.train, composed.cfg.sft, typed, reinforces=run.reinforces)
    gap = _no_recipe(line, groups)
    if gap and problems and given.cluster.on_gpus:
        todo = "The layout is the default: add --fit to 'slime plan' to see which fit."
        composed.warnings.append(SlimeError(gap, todo=todo))
    composed.problems = [line.located(problem) for problem in problems]
    composed.run_files = line.run_files
    if line.base and not problems:
        composed.notes = [_beside(line.base, container(composed.cfg))]
    return composed


def _beside(base: RunFile, config: Mapping[str, Any]) -> str:
    """What a run has otherwise than the one whose config it is made of."""
    before = flat({setting.key: setting.value for setting in base.settings})
    apart = ("run.name", *(f"run.{key}" for key in OF_START), *of_directory())
    differs = [text for key, text in changes(before, flat(config)).items() if key not in apart]
    other = f"with {'; '.join(differs)}" if differs else "unchanged"
    return f"{base.word} is taken {other}; the run is '{config['run']['name']}' in {config['run']['dir']}"


def over(saved: Mapping[str, Any]) -> str:
    """Name of a config of Hydra that has these values, section -> key -> value, below all choices of groups."""
    store, name, none = ConfigStore.instance(), "over", {"task": NO_TASK, "recipe": NO_RECIPE}  # which choose, too
    for group in ("algo", "filter", "buffer"):  # the others have a file for it
        store.store(group=group, name=UNSET, node={})
    ordered = [*(group for group in DECLARED if group not in none), *none]
    chosen = [{group: none.get(group, UNSET)} for group in ordered]
    store.store(name="saved", node=dict(saved))
    store.store(name=name, node={"defaults": ["schema", "saved", *chosen, "_self_"]})
    return name


def _layer(
    files: DictConfig,
    given: SlimeConfig,
    line: CommandLine,
    groups: Groups,
    plugins: slime_plugins.Plugins,
    above: Mapping[str, str],
) -> Iterator[Composition]:
    """What the files of model, cluster and task say, under those of other choices; what they leave open is the user's.
    Nothing, if they are no config without the command line. Composed when it is asked for."""
    chosen = {group: line.choices[group] for group in ("model", "cluster", "task")} | {**above}
    words = [f"{group}={option}" for group, option in chosen.items()]
    try:
        merged = files if {*words} == {*line.files} else _files(words, groups)
        for key in OmegaConf.missing_keys(merged):
            OmegaConf.update(merged, key, value_of(given, key))
        layer = cast(SlimeConfig, OmegaConf.to_object(merged))
    except (HydraException, OmegaConfBaseException, yaml.YAMLError):
        return
    derive(layer, plugins)
    yield Composition(layer)


def checked(given: SlimeConfig, line: CommandLine, plugins: slime_plugins.Plugins) -> Composed:
    """A copy of a config, completed, and held against every rule."""

    def rules(cfg: SlimeConfig) -> Sequence[SlimeError]:
        derive(cfg, plugins)
        return check(cfg, plugins, reads_data=False).problems

    cfg = copy.deepcopy(given)
    derive(cfg, plugins)
    found = check(cfg, plugins)
    missing = list[SlimeError]()
    if found.problems and not value_problems(cfg, plugins):
        for adviser in plugins.registries["adviser"]:
            found.problems = list(adviser.factory(found.problems, given, rules))
    elif found.topology and not found.problems:
        if found.memory and found.memory.fit_together():
            cfg.rollout.sglang[SAVER] = False
            found.topology = read_topology(cfg)
            found.memory = found.memory.under(found.topology)
        missing = needs(found.topology, {key for key, _ in line.values})
    return Composed(**vars(found), cfg=cfg, needs=missing, choices=line.choices)


@functools.lru_cache(maxsize=1)
def _store_schema(sections: tuple[type, ...]) -> None:
    """The one with these sections; once for all compositions of a process, for it takes as long as an eighth of one."""
    ConfigStore.instance().store(name="schema", node=default_config())


def merge(line: CommandLine, groups: Groups, name: str = "config") -> tuple[DictConfig, SlimeConfig]:
    """What the config `name` of Hydra lists, in its order, and the same under the values of the command line."""
    try:
        files = _files(line.files, groups, name)
        merged = _with_values(files, line.values) if line.values else files
        _require_complete(merged, line, groups)
        _name(merged, line)
        return files, cast(SlimeConfig, OmegaConf.to_object(merged))
    except MissingConfigException as error:
        # A file's own `defaults` names an option that nobody ships: the command line's choices were checked before.
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        where = f"recipe {line.choices['recipe']}" if line.choices["recipe"] != NO_RECIPE else ""
        todo = did_you_mean(option, groups.names(group))
        raise SlimeError(f"there is no {group}={option}", where=where, todo=todo) from error
    except yaml.YAMLError as error:
        raise bad_yaml(error) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise _in_one_line(error, line) from error


def _name(merged: DictConfig, line: CommandLine) -> None:
    """Tell the run from others of its model and cluster, where nobody named it."""
    given, usual = (OmegaConf.to_container(OmegaConf.structured(run), resolve=False) for run in (merged.run, RunConfig))
    assert isinstance(given, dict)
    assert isinstance(usual, dict)
    if given["name"] == (line.saved["run"]["name"] if line.saved else usual["name"]):
        merged.run.name = f"{given['name']}{line.variant}"


def _files(choices: Sequence[str], groups: Groups, name: str = "config") -> DictConfig:
    HydraPlugins.instance().register(PluginSearchPath)
    _store_schema(tuple(extended(base) for _, base in SECTIONS.values()))
    for option in groups.without_file():  # Hydra looks there after all folders
        ConfigStore.instance().store(group=option.group, name=option.name, node={"name": option.name})
    with hydra.initialize_config_module("slime.conf", job_name="slime", version_base="1.3"):
        return hydra.compose(name, overrides=list(choices))


def _with_values(files: DictConfig, values: Sequence[tuple[str, Any]]) -> DictConfig:
    """A copy: Hydra could set values too, and would read all files again for what they say without these."""
    merged = copy.deepcopy(files)
    for key, value in values:
        home, _, last = key.rpartition(".")
        if value is not REMOVED:
            OmegaConf.update(merged, key, value, force_add=open_section(key) is not None)
        elif isinstance(section := OmegaConf.select(merged, home), DictConfig) and last in section:
            with open_dict(section):
                del section[last]
        else:
            raise SlimeError(f"there is no {key} to remove", todo=f"Leave out '~{key}'.")
    return merged


def _require_complete(merged: DictConfig, line: CommandLine, groups: Groups) -> None:
    unset = OmegaConf.missing_keys(merged)
    missing = [name for name in own_keys() if name in unset]
    if not missing:
        return
    if "reward.name" in missing:
        raise SlimeError("no reward is chosen", where=_no_recipe(line, groups), todo=groups.choose("reward"))
    todo = f"Set it: {' '.join(f'{name}=<value>' for name in missing)}."
    raise SlimeError(f"not set: {', '.join(missing)}", where=_no_recipe(line, groups), todo=todo)


def _no_recipe(line: CommandLine, groups: Groups) -> str:
    """Says that no recipe fills the gap, and which ones there are for this model."""
    if line.base:
        return ""
    model, wanted = line.choices["model"], f"{line.choices['model']}@{line.choices['cluster']}"
    recipes = [name for name in groups.names("recipe") if name.startswith(f"{model}@")]
    if line.choices["recipe"] != NO_RECIPE or wanted in recipes:
        return ""
    return f"there is no recipe {wanted}" + (f" (only {', '.join(recipes)})" if recipes else "")


def _in_one_line(error: Exception, line: CommandLine) -> SlimeError:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return SlimeError(" ".join(str(error).split())[:MAX_FACT], todo="Correct that file or argument.")
    key = str(cause.full_key or ("" if cause.key is None else cause.key))
    match = re.match(r"In '([^']+)'", str(error))
    file = line.origins.get(key) or (f"{match[1]}.yaml" if match else "")
    fact = (cause.msg or str(cause)).splitlines()[0].rstrip(".")
    fact = fact if len(fact) <= MAX_FACT else f"{fact[:MAX_FACT]}..."
    if re.match(r"Key '.*' (is )?not in|Could not override", fact):
        return SlimeError(f"there is no key '{key}'", where=file, todo=_unknown_key(key))
    known = own_keys().get(key)
    if isinstance(cause, MissingMandatoryValue):
        return SlimeError(f"{key} is not set", where=file, todo=f"Set {key}=<value>.")
    if known and known.type == "dictionary":
        todo = f"Write {key}.<name>=<value>. It is: {known.gist}"
        return SlimeError(f"{key} is a dictionary, and takes no other value", where=file, todo=todo)
    wrong = re.match(r"Value (.*) (?:of type '\w+' could not be converted|is not a valid)", fact)
    if known and (got := wrong[1] if wrong else "null" if fact.endswith("is not Optional") else ""):
        return SlimeError(f"{key}: must be {known.type}, got {got}", where=file, todo=f"It is: {known.gist}")
    todo = f"It takes {known.type}: {known.gist}" if known else "docs/config.md lists every key."
    return SlimeError(f"{key}: {fact}" if key else fact, where=file, todo=todo)


def _unknown_key(key: str) -> str:
    if elsewhere := how_to_get(key):
        return elsewhere
    top = key.split(".")[0]
    if top in own_keys() or any(name.startswith(f"{top}.") for name in own_keys()):
        return suggest(key)
    sections = {name.split(".")[0] for name in own_keys()}
    return f"{did_you_mean(top, sections)} (A file that sets several sections begins with '# @package _global_'.)"
