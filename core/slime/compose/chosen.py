"""What a config takes of the installed plugins by name: where it does, their options completed, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slime.compose.options import check_options, completed, defaults_of, own_problems
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.plugins import Plugins


@dataclass(frozen=True)
class Choice:
    """One name with its options, a dictionary unless the user mistook them, under the key `home`. `label` is its kind,
    and behind a point where it stands if there may be several."""

    label: str
    name: str
    options: Any
    home: str

    @property
    def kind(self) -> str:
        return self.label.partition(".")[0]

    @property
    def key(self) -> str:
        """The key that has the name; where `<home>=true` is enough to choose it, `home`."""
        home = self.home.removesuffix("_options")
        return f"{home.removesuffix('.options')}.name" if home.endswith(".options") else home


def choices_of(cfg: SlimeConfig) -> Iterator[Choice]:
    """All but model family, objective and transport, in the order in which they are checked."""
    yield Choice("reward", cfg.reward.name, cfg.reward.options, "reward.options")
    yield Choice("program", cfg.rollout.program.name, cfg.rollout.program.options, "rollout.program.options")
    yield Choice("filter", cfg.filter.name, cfg.filter.options, "filter.options")
    for name, options in cfg.filter.then.items():
        yield Choice(f"filter.then.{name}", name, options, f"filter.then.{name}")
    yield Choice("buffer", cfg.buffer.name, cfg.buffer.options, "buffer.options")
    for home, own in {**cfg.data.named(), **cfg.eval.named()}.items():
        for kind, chosen in (("reward", own.reward), ("program", own.program)):
            if chosen:
                yield Choice(f"{kind}.{home}", chosen, getattr(own, f"{kind}_options"), f"{home}.{kind}_options")
    for name, options in cfg.observe.trackers.items():
        yield Choice(f"tracker.{name}", name, options, f"observe.trackers.{name}")


def complete(choices: Iterable[Choice], plugins: Plugins) -> None:
    """Give all options their defaults, in place."""
    for choice in choices:
        if isinstance(choice.options, dict):
            schema = plugins.schemas.get(f"{choice.kind}/{choice.name}")
            options = completed(schema, defaults_of(schema) | choice.options)
            choice.options.clear()
            choice.options.update(options)


def choice_problems(choices: Iterable[Choice], plugins: Plugins) -> Iterator[SlimeError]:
    """Names that are not installed, and options that they do not take."""
    for choice in choices:
        try:
            item = plugins.registries[choice.kind].get(choice.name)
        except SlimeError as problem:
            yield SlimeError(problem.what, where=choice.key, todo=problem.todo)
            continue
        if isinstance(choice.options, dict):
            schema = plugins.schemas.get(f"{choice.kind}/{choice.name}")
            faults = list(check_options(item, choice.options, schema, choice.home))
            yield from faults or own_problems(schema, choice.options, choice.home)
        else:
            todo = f"Write {choice.home}=true, or {choice.home}.<option>=<value>."
            yield SlimeError(f"'{choice.options}' is neither true, false nor options", where=choice.home, todo=todo)


def switched(options: Mapping[str, Any]) -> dict[str, Any]:
    """Names with their options: none for what is only switched on, and what is switched off is gone."""
    return {name: {} if each is True else each for name, each in options.items() if each not in (None, False)}


def default_trackers(plugins: Plugins) -> dict[str, Any]:
    """Trackers that want to be on where they are installed, unless the config says false."""
    return {item.name: True for item in plugins.trackers if getattr(item.factory, "by_default", False)}
