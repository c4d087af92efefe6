"""A run file: choices and keys of a run in YAML, nested or dotted, each with the line that it stands on."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime.compose.groups import bad_yaml
from slime.config.keys import ANY_NAME, own_keys
from slime.config.paths import resolve
from slime.errors import SlimeError

TYPED = ("rollout.engines", "data.sets", "eval.sets")
"""Dictionaries of sections, whose names are the user's."""
_WHOLE = {"run.name", "model.family", "cluster.name", "algo.name"}
"""Keys that the config.yaml of a run has, and a file of a user's over a model and a cluster has not."""
_Path = tuple[str, ...]
"""A key by the mappings that it stands in."""
_TODO = "Write lines such as 'cluster: local' and 'run.seed: 7' (docs/run-file.md)."


@dataclass(frozen=True)
class Setting:
    """What one word of the command line, or one line of a file, sets.

    Attributes:
        key: or group.
        text: as the user wrote it.
        where: file and line; empty for a word.
        is_removal: whether the key is taken away.
        is_choice: whether a group of this name would be meant.
    """

    key: str
    value: Any
    text: str
    where: str = ""
    is_removal: bool = False
    is_choice: bool = True


@dataclass(frozen=True)
class RunFile:
    """`saved`: section -> key -> value, where it is the whole config of a run."""

    word: str
    settings: list[Setting]
    saved: dict[str, Any] | None = None


def read_run_file(word: str) -> RunFile:
    """Raises SlimeError if there is no such file, or it is no mapping of YAML, or sets a key twice."""
    tree, lines = _parsed(word)
    settings = dict[str, Setting]()
    for path, value in _flat(tree):
        key = ".".join(path)
        line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)
        setting = Setting(key.lstrip("+~"), value, f"{key}: {value}", f"{word}, line {line}", key.startswith("~"))
        if before := settings.get(setting.key):
            what = f"{setting.key} stands here and in {before.where}"
            raise SlimeError(what, where=setting.where, todo="Keep one of them.")
        settings[setting.key] = setting
    return RunFile(word, [*settings.values()], tree if settings.keys() >= _WHOLE else None)


def _parsed(word: str) -> tuple[dict[str, Any], dict[_Path, int]]:
    """The file's content, and the line of each key."""
    try:
        stream = io.StringIO(resolve(word).read_text(encoding="utf-8"))
        stream.name = word
        found = OmegaConf.to_container(OmegaConf.load(stream))
        stream.seek(0)
        lines = dict(_lines(yaml.compose(stream, Loader=yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise bad_yaml(error) from error
    except (OSError, ValueError, RecursionError, OmegaConfBaseException) as error:
        reason = (getattr(error, "strerror", None) or str(error) or repr(error)).splitlines()[0]
        raise SlimeError(f"is no run file ({reason})", where=word, todo=_TODO) from error
    if not isinstance(found, dict):
        raise SlimeError("is no run file: it has no keys", where=word, todo=_TODO)
    return {str(key): value for key, value in found.items()}, lines


def _lines(node: yaml.Node | None, above: _Path = ()) -> Iterator[tuple[_Path, int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield (*above, str(key.value)), key.start_mark.line + 1
        yield from _lines(value, (*above, str(key.value)))


def _flat(tree: Mapping[str, Any], above: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Keys of the schema and their values, and one level more of open dictionaries."""
    for name, value in tree.items():
        path = (*above, str(name))
        if isinstance(value, dict) and _is_section(".".join(path)):
            yield from _flat(value, path)
        else:
            yield path, value


def _is_section(key: str) -> bool:
    home = next((home for home in TYPED if key.startswith(f"{home}.")), None)
    if home:
        _, _, inside = key.removeprefix(f"{home}.").partition(".")
        key = f"{home}.{ANY_NAME}.{inside}".rstrip(".")
    own = own_keys()
    return (key in own and own[key].is_open) or any(name.startswith(f"{key}.") for name in own)
