"""Finds the installed plugins, asks each one its hooks, and keeps what they contribute by name.

pluggy cannot say which plugin answered a hook, so each plugin is asked by its own functions. A plugin that cannot be
used is kept with its problem: `slime plugins` lists it, `train`, `eval` and `plan` refuse to start beside it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, TypeGuard

import pluggy

import slime
from slime.config.extended import PROMPT_SETS, SECTIONS, add_keys
from slime.contracts import VerbFactory
from slime.errors import SlimeError, did_you_mean
from slime.foreign import foreign
from slime.hookspecs import SlimeHooks
from slime.imports import interrupts_held
from slime.registry import Contribution, Registry

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig
    from slime.contracts import BufferPolicy, Explanation, Program, Reward, SampleFilter, Tracker, Verb
    from slime.estimator import Estimator
    from slime.events import Subscriber
    from slime.models.bridge import ModelBridge
    from slime.objective import Objective

ENTRY_POINT_GROUP = "slime"
BUILTIN = "slime-rl"
"""slime's own distribution, whose built-ins are contributed like a plugin's."""
VERB = "verb"
NOT_BY_NAME = ("slime_config_paths", "slime_config_schemas", "slime_check")
"""Hooks that contribute nothing that is chosen by name."""
HOOK_OF_KIND = {"algo": "slime_objectives"} | {
    hook.removeprefix("slime_").removesuffix("s"): hook
    for hook in vars(SlimeHooks)
    if hook.startswith("slime_") and hook not in (*NOT_BY_NAME, "slime_objectives")
}
"""By the kind of its contributions."""
ALONE = ("conversation", "rollout", "engine_return", "ray_starter")
"""Kinds of which a run takes what is installed, whatever its name: there is one, or none."""
CONFIG_SCHEME = "pkg://"

Fingerprint = dict[str, dict[str, Any]]


@dataclass
class Plugin:
    """One entry point of group `slime`: its contributions, or why it cannot be used."""

    name: str
    distribution: str
    version: str
    contributions: list[Contribution] = field(default_factory=list)
    config_paths: tuple[str, ...] = ()
    schemas: Mapping[str, type] = field(default_factory=dict)
    hooks: Mapping[str, pluggy.HookImpl] = field(default_factory=dict)
    problem: SlimeError | None = None

    def broken(self, what: str, todo: str = "") -> SlimeError:
        """The one line about this plugin; the way out is an upgrade or removal unless `todo` knows better."""
        way_out = f"Upgrade it ('pip install -U {self.distribution}')"
        remove = f"or remove it ('pip uninstall {self.distribution}')."
        return SlimeError(what, where=f"plugin {self.distribution} {self.version}", todo=f"{todo or way_out}, {remove}")

    @property
    def checks(self) -> bool:
        return "slime_check" in self.hooks

    def brings(self) -> dict[str, list[str]]:
        """Kind -> names of its contributions, for a listing; a plugin that only checks says so."""
        kinds = {kind: sorted(item.name for item in self.contributions if item.kind == kind) for kind in HOOK_OF_KIND}
        return {kind: names for kind, names in kinds.items() if names} | (
            {"check": ["slime_check"]} if self.checks else {}
        )

    def ask(self, hook: str, **arguments: Any) -> Any:
        """The plugin's answer to one hook, None if it does not implement it; SlimeError if it raises."""
        if (own := self.hooks.get(hook)) is None:
            return None
        with foreign(self.broken, f"{hook} raised {{}}"):
            return own.function(**{name: arguments[name] for name in own.argnames})


class Plugins:
    """Everything that is installed: a registry of each kind, config folders, option schemas and checks."""

    def __init__(self, installed: Sequence[Plugin]) -> None:
        self.installed = tuple(installed)
        contributions = [item for plugin in self.sound for item in plugin.contributions]
        self.registries: Mapping[str, Registry[Any]] = {kind: Registry(kind, contributions) for kind in HOOK_OF_KIND}
        self.models: Registry[ModelBridge] = self.registries["model"]
        self.rewards: Registry[Reward] = self.registries["reward"]
        self.programs: Registry[Program] = self.registries["program"]
        self.conversations: Registry[Any] = self.registries["conversation"]
        self.rollouts: Registry[Any] = self.registries["rollout"]
        self.filters: Registry[SampleFilter] = self.registries["filter"]
        self.buffers: Registry[BufferPolicy] = self.registries["buffer"]
        self.objectives: Registry[Objective] = self.registries["algo"]
        self.estimators: Registry[Estimator] = self.registries["estimator"]
        self.explanations: Registry[Explanation] = self.registries["explanation"]
        self.trackers: Registry[Tracker] = self.registries["tracker"]
        self.subscribers: Registry[Subscriber] = self.registries["subscriber"]
        self.verbs: Registry[Verb] = self.registries[VERB]
        self.transports: Registry[Any] = self.registries["transport"]
        self.quantizations: Registry[Any] = self.registries["quantization"]
        self.adapters: Registry[Any] = self.registries["adapter"]
        self.launchers: Registry[Any] = self.registries["launcher"]
        typed = {f"{item.kind}/{item.name}": item.factory for item in contributions if _is_dataclass(item.factory)}
        named = {key: schema for plugin in self.sound for key, schema in plugin.schemas.items()}
        self.schemas: Mapping[str, type] = typed | named

    @property
    def sound(self) -> list[Plugin]:
        return [plugin for plugin in self.installed if plugin.problem is None]

    @property
    def problems(self) -> list[SlimeError]:
        return [plugin.problem for plugin in self.installed if plugin.problem]

    def require_sound(self) -> None:
        """SlimeError about the first broken plugin; a run never starts beside one."""
        if self.problems:
            raise self.problems[0]

    def check(self, cfg: SlimeConfig) -> list[SlimeError]:
        """Problems of a run by the plugins' own `slime_check` hooks, each of which asks for sections by their names."""
        return [
            told
            if isinstance(told, SlimeError)
            else SlimeError(told.rstrip("."), where=plugin.distribution, todo="Change the keys it names.")
            for plugin in self.sound
            for told in plugin.ask("slime_check", cfg=cfg, **vars(cfg)) or ()
        ]

    def fingerprint(self) -> Fingerprint:
        """Entry point -> distribution, version and contributions: plain values to compare two machines by. Verbs are
        left out: a host needs none of them, because a verb runs where it is called."""
        return {
            plugin.name: {
                "distribution": plugin.distribution,
                "version": plugin.version,
                "contributes": sorted(f"{item.kind}/{item.name}" for item in plugin.contributions if item.kind != VERB),
            }
            for plugin in self.installed
            if plugin.brings().keys() != {VERB} or plugin.config_paths
        }

    def provenance(self, used: Mapping[str, str]) -> dict[str, Any]:
        """The content of `plugins.json`: all that is installed, and which distribution each used name came from.

        Args:
            used: kind -> chosen name, such as `{"reward": cfg.reward.name}`. Where there are several of a kind, the
                others have a suffix: `filter.then.<name>`.
        """
        chosen = {kind: self.registries[kind.partition(".")[0]].get(name) for kind, name in used.items()}
        return {
            "slime": slime.__version__,
            "installed": self.fingerprint(),
            "used": {
                kind: {"name": item.name, "distribution": item.distribution, "version": item.version}
                for kind, item in chosen.items()
            },
        }


@functools.cache
def load() -> Plugins:
    """The plugins of this environment; read once a process."""
    found = discover(entry_points(group=ENTRY_POINT_GROUP))
    for kind in SECTIONS:
        prefix = f"{kind}/"
        add_keys(kind, {key.removeprefix(prefix): own for key, own in found.schemas.items() if key.startswith(prefix)})
    PROMPT_SETS.update({item.name: item.factory for item in found.registries["prompt_set"]})
    return found


def discover(entries: Iterable[EntryPoint]) -> Plugins:
    """Load every entry point, the built-ins first, and mark what is broken or claimed twice."""
    specs = pluggy.PluginManager("slime")
    specs.add_hookspecs(SlimeHooks)
    builtin = Plugin("slime", BUILTIN, slime.__version__)
    _read_hooks(builtin, importlib.import_module("slime.builtins"), specs)
    installed = [builtin, *(_load_entry(entry, specs) for entry in sorted(entries, key=lambda entry: entry.name))]
    _mark_duplicates(installed)
    return Plugins(installed)


def _load_entry(entry: EntryPoint, specs: pluggy.PluginManager) -> Plugin:
    assert entry.dist is not None, "an entry point read from metadata knows its distribution"
    described = entry.dist.metadata  # which is parsed again whenever it is asked for
    plugin = Plugin(entry.name, described["Name"], described["Version"])
    try:
        if wanted := other_versions(BUILTIN, slime.__version__, described.get_all("Requires-Dist") or []):
            raise plugin.broken(f"made for slime {wanted}, this is slime {slime.__version__}")
        with foreign(plugin.broken, f"'{entry.value}' does not import ({{}})"), interrupts_held():
            module = entry.load()
        _read_hooks(plugin, module, specs)
        if not (plugin.contributions or plugin.config_paths or plugin.checks):
            raise plugin.broken("it contributes nothing (are its hooks marked with @hookimpl?)")
    except SlimeError as problem:
        plugin.problem = problem
    return plugin


def _read_hooks(plugin: Plugin, module: Any, specs: pluggy.PluginManager) -> None:
    """Find the hooks of `module`, which leaves `specs` again, and ask it everything that does not depend on a run."""
    try:
        specs.register(module, plugin.name)
        own = specs.get_hookcallers(module) or []
        plugin.hooks = {hook.name: hook.get_hookimpls()[0] for hook in own}
    except pluggy.PluginValidationError as error:
        raise plugin.broken(_signature_fault(error), _ASK_AUTHOR) from error
    finally:
        specs.unregister(name=plugin.name)
    if unknown := [hook.name for hook in own if not hook.has_spec()]:
        nearest = did_you_mean(unknown[0], (hook for hook in vars(SlimeHooks) if hook.startswith("slime_")))
        raise plugin.broken(f"there is no hook '{unknown[0]}'. {nearest.rstrip('.')}", _ASK_AUTHOR)
    for kind, hook in HOOK_OF_KIND.items():
        plugin.contributions += _contributions(plugin, kind, hook)
    plugin.config_paths = tuple(_config_path(plugin, path) for path in plugin.ask("slime_config_paths") or ())
    plugin.schemas = _schemas(plugin)


_ASK_AUTHOR = "docs/hooks.md gives every hook's signature; correct the plugin"


def _signature_fault(error: pluggy.PluginValidationError) -> str:
    """pluggy's several lines about a hook as one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "wrong hook signature: " + "; ".join(lines[1:])


def _contributions(plugin: Plugin, kind: str, hook: str) -> list[Contribution]:
    if (answer := plugin.ask(hook)) is None:
        return []
    wanted = isinstance(answer, Mapping) and all(isinstance(name, str) and callable(f) for name, f in answer.items())
    if not wanted:
        raise plugin.broken(f"{hook} returned {answer!r}, not {{name: factory}}", _ASK_AUTHOR)
    if kind == VERB and not all(isinstance(factory, VerbFactory) for factory in answer.values()):
        raise plugin.broken(f"{hook} returned {answer!r}, not {{name: VerbFactory}}", _ASK_AUTHOR)
    return [Contribution(kind, name, factory, plugin.distribution, plugin.version) for name, factory in answer.items()]


def _config_path(plugin: Plugin, path: str) -> str:
    if not path.startswith(CONFIG_SCHEME) or not _is_importable(path.removeprefix(CONFIG_SCHEME)):
        fault = f"slime_config_paths names '{path}', which is not an importable folder 'pkg://package.conf'"
        raise plugin.broken(fault, "Give the folder an __init__.py and ship it in the wheel")
    return path


def _is_importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


def _schemas(plugin: Plugin) -> Mapping[str, type]:
    schemas: Mapping[str, type] = plugin.ask("slime_config_schemas") or {}
    contributed = [f"{item.kind}/{item.name}" for item in plugin.contributions]
    for key, schema in schemas.items():
        if key not in contributed:
            raise plugin.broken(f"it has an option schema for '{key}', which it does not contribute", _ASK_AUTHOR)
        if not _is_dataclass(schema):
            raise plugin.broken(f"the option schema of '{key}' is not a dataclass", _ASK_AUTHOR)
        _, base = SECTIONS.get(key.partition("/")[0], ("", object))
        if not issubclass(schema, base):
            raise plugin.broken(f"the option schema of '{key}' is no subclass of {base.__name__}", _ASK_AUTHOR)
    return schemas


def _is_dataclass(factory: Any) -> TypeGuard[type]:
    return isinstance(factory, type) and is_dataclass(factory)


def _mark_duplicates(installed: Sequence[Plugin]) -> None:
    """Mark every plugin that claims what another one claims too; the built-ins are never at fault."""
    claims: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in installed:
        for told in _claims(plugin):
            claims[told].append(plugin)
    for (claim, way), rivals in claims.items():
        for plugin in rivals if len(rivals) > 1 else ():
            others = " and ".join(sorted({rival.distribution for rival in rivals if rival is not plugin})) or "itself"
            if plugin.distribution != BUILTIN and plugin.problem is None:
                plugin.problem = plugin.broken(f"{claim} is also brought by {others}", f"Keep one of them: {way}")


def _claims(plugin: Plugin) -> Iterator[tuple[str, str]]:
    """Claims of a plugin that no other may have, each with what to do beside removing this one."""
    yield f"entry point '{plugin.name}'", "upgrade this"
    for item in plugin.contributions:
        yield f"{item.kind} '{item.name}'", "upgrade this"
        if item.kind in ALONE:
            yield f"a {item.kind}, of which a run takes one,", "remove the other"


def other_versions(distribution: str, version: str, requires: Sequence[str]) -> str:
    """The versions of `distribution` that `requires`, of a distribution's metadata ("slime-rl<0.2,>=0.1"), asks for, if
    `version` is none of them; else empty."""
    major, minor, *_ = version.split(".")
    bounds = (f">={major}.{minor}", f"<{major}.{int(minor) + 1}")
    usual = {f"{distribution}{','.join(order)}" for order in (bounds, bounds[::-1])}
    if usual & {re.sub(r"\[\w+\]", "", each, count=1) for each in requires}:  # less an extra, as of model families
        return ""  # as docs/hooks.md has it; `packaging` would take a quarter of the time of `slime --help`
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, requires):
        applies = requirement.marker is None or requirement.marker.evaluate()
        ours = applies and canonicalize_name(requirement.name) == distribution
        if ours and not requirement.specifier.contains(version, prereleases=True):
            return str(requirement.specifier)
    return ""
