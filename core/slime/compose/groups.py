"""The config groups (`model`, `cluster`, `reward`, ...) and who provides each option, found by looking at the folders.

Hydra takes the first of two providers of one `group/name` without a word; here that is an error.
"""

from __future__ import annotations

import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slime.errors import MAX_CHOICES, SlimeError, did_you_mean, nearest
from slime.extras import brought_by, how_to_get
from slime.plugins import CONFIG_SCHEME, Plugins

DECLARED = ("model", "cluster", "algo", "task", "reward", "filter", "buffer", "recipe")
"""The groups that `conf/config.yaml` lists; `+group=` and `group=` mean the same for them."""
REGISTERED = ("algo", "reward", "filter", "buffer")
"""Groups whose options are registered by name: a file of that name may set more keys, and none is needed."""
UNSET = "unset"
NO_RECIPE = NO_TASK = "none"


@dataclass(frozen=True)
class Option:
    """One choice of a group: the distribution that brings it, and its file, which what is registered need not have."""

    group: str
    name: str
    distribution: str
    file: Path | None = None

    @property
    def is_choice(self) -> bool:
        """Whether a user may want it (the empty `unset` is not offered)."""
        return self.name != UNSET


class Groups:
    def __init__(self, options: Sequence[Option]) -> None:
        self._options: dict[str, dict[str, Option]] = defaultdict(dict)
        for option in options:
            if rival := self._options[option.group].get(option.name):
                both = f"{rival.distribution} and {option.distribution}"
                todo = f"Keep one: 'pip uninstall {option.distribution}' or 'pip uninstall {rival.distribution}'."
                raise SlimeError(f"{option.group}={option.name} is provided by both {both}", todo=todo)
            self._options[option.group][option.name] = option

    def __contains__(self, group: str) -> bool:
        return group in self._options

    def names(self, group: str) -> list[str]:
        """What a user may choose in a group, sorted, numbers in the names by their size."""
        names = [option.name for option in self._options[group].values() if option.is_choice]
        return sorted(names, key=lambda name: re.sub(r"\d+", lambda digits: digits[0].rjust(9, "0"), name))

    def choose(self, group: str, prefix: str = "") -> str:
        """A sentence for `SlimeError.todo`: every option as one writes it, or what to install so that there is one."""
        names = self.names(group)
        if sum(map(len, names)) > MAX_CHOICES:
            shown = ", ".join(f"{prefix}{group}={name}" for name in names[:5])
            return f"Choose one of {len(names)}, for instance {shown}; 'slime --help' lists them all."
        if names:
            return f"Choose one: {', '.join(f'{prefix}{group}={name}' for name in names)}."
        return f"None is installed: install {brought_by(group)} as docs/install.md says."

    def without_file(self) -> Iterator[Option]:
        return (option for options in self._options.values() for option in options.values() if option.file is None)

    def of(self, distribution: str) -> Mapping[str, list[str]]:
        """Group -> option names that one distribution ships."""
        shipped: dict[str, list[str]] = defaultdict(list)
        for group, options in self._options.items():
            shipped[group] += [o.name for o in options.values() if o.distribution == distribution and o.is_choice]
        return {group: sorted(names) for group, names in shipped.items() if names}

    def require(self, group: str, name: str) -> None:
        """SlimeError with the nearest name if the group has no such option."""
        if name not in self._options[group]:
            known = self.names(group)
            meant = did_you_mean(name, known, f"{group}=") if known else self.choose(group)
            todo = how_to_get(f"+{group}/{name}") or meant
            raise SlimeError(f"there is no {group}={name}", todo=todo)

    def recipe_for(self, model: str, cluster: str) -> str:
        """The recipe of a model on a cluster, else that of the model on any, `none` if nobody ships one; a mistyped
        file name is an error."""
        wanted = f"{model}@{cluster}"
        for name in (wanted, model):
            if name in self._options["recipe"]:
                return name
        match = nearest(wanted, (name for name in self.names("recipe") if self._is_orphan(name)))
        if match:
            option = self._options["recipe"][match]
            assert option.file, "a recipe is a file"
            what = f"recipe '{match}' of {option.distribution} belongs to no installed model and cluster"
            todo = f"Rename {option.file.name} to '{wanted}.yaml' if that is meant, or add recipe={NO_RECIPE}."
            raise SlimeError(what, todo=todo)
        return NO_RECIPE

    def task_of(self, model: str) -> str:
        """The task that a model's file names for when none is chosen."""
        import yaml
        from omegaconf import OmegaConf  # a third of the time of `slime --help`, which needs it not

        file = self._options["model"][model].file
        assert file, "a model is a file"
        try:
            named = OmegaConf.load(file)  # a file that sets more than its section has that under its name
            return str(OmegaConf.select(named, "task") or OmegaConf.select(named, "model.task") or NO_TASK)
        except yaml.YAMLError as error:
            raise bad_yaml(error) from error

    def _is_orphan(self, recipe: str) -> bool:
        model, _, cluster = recipe.partition("+")[0].partition("@")  # behind +: a variant's own name
        known = model in self._options["model"] and (not cluster or cluster in self._options["cluster"])
        return recipe != NO_RECIPE and not known


def bad_yaml(error: Exception) -> SlimeError:
    """What PyYAML found in a file of a user's or a plugin's, and where, in one line."""
    mark, fault = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
    where = f"{mark.name}, line {mark.line + 1}" if mark else ""
    return SlimeError(f"is not YAML: {' '.join(fault.split())[:200]}", where=where, todo="Correct that file.")


def scan(plugins: Plugins) -> Groups:
    """Look at every config folder of the sound plugins, and at what they register without a file."""
    files = [
        Option(file.parent.name, file.stem, plugin.distribution, file)
        for plugin in plugins.sound
        for path in plugin.config_paths
        for file in sorted(folder_of(path).glob("*/*.yaml"))
    ]
    written = {(option.group, option.name) for option in files}
    registered = (item for kind in REGISTERED for item in plugins.registries[kind])
    bare = [Option(item.kind, item.name, item.distribution) for item in registered]
    return Groups([*files, *(option for option in bare if (option.group, option.name) not in written)])


def folder_of(config_path: str) -> Path:
    spec = importlib.util.find_spec(config_path.removeprefix(CONFIG_SCHEME))
    assert spec is not None, "a missing config package is found while loading the plugin"
    assert spec.submodule_search_locations, "a config path is a package"
    return Path(next(iter(spec.submodule_search_locations)))
