"""The config.yaml of a run: written whole, read back, compared key by key."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime.config.schema import LrDecay, SlimeConfig
from slime.errors import SlimeError

HIDDEN = "(not shown to trackers)"
"""In place of environment variables, which may be somebody's keys."""


def container(cfg: SlimeConfig) -> dict[str, Any]:
    """Section -> key -> value."""
    found = OmegaConf.to_container(OmegaConf.structured(cfg), resolve=True, enum_to_str=True)
    assert isinstance(found, dict)
    return {str(section): keys for section, keys in found.items()}


def read_config(path: Path) -> dict[str, Any]:
    """Section -> key -> value, of the config.yaml of a run. Raises SlimeError if it cannot be read, or is something
    else."""
    try:
        found = OmegaConf.to_container(OmegaConf.load(path))
        sound = isinstance(found, dict) and all(isinstance(keys, dict) for keys in found.values())
        reason = "" if sound else "it is no table of sections"
    except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
    if reason:
        todo = "Bring the file back, or name another run."
        raise SlimeError(f"this is not the config of a run ({reason})", where=str(path), todo=todo)
    assert isinstance(found, dict)
    return {str(name): keys for name, keys in found.items()}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys; an empty mapping vanishes."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    parts = (flat(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in tree.items())
    return {key: value for part in parts for key, value in part.items()}


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """Every key that differs, with `key: old -> new`; `-` stands for a key that is not there."""
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key, "-") != new.get(key, "-"))
    return {key: f"{key}: {old.get(key, '-')} -> {new.get(key, '-')}" for key in keys}


def of_learning(changes: Mapping[str, str]) -> list[str]:
    """Changes that concern more than where, how long and how visibly a run runs."""
    return [text for key, text in changes.items() if key == "run.seed" or not key.startswith(("run.", "observe."))]


def changes_of_resume(old: Mapping[str, Any], cfg: SlimeConfig) -> dict[str, str]:
    """`changes` of a run that goes on with `cfg`, with what follows from a new length."""
    found, train = changes(flat(old), flat(container(cfg))), cfg.train
    if "run.num_steps" in found and train.lr_decay is not LrDecay.constant and train.lr_decay_steps is None:
        found["run.num_steps"] += " (the learning rate decays over all steps, so it is another from here on)"
    return found


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config`, section -> key -> value as in config.yaml, without the values of environment variables."""
    shown = copy.deepcopy(dict(config))
    engines = shown.get("rollout", {}).get("engines")
    for holder in (shown.get("cluster"), *(engines.values() if isinstance(engines, dict) else ())):
        if isinstance(holder, dict) and isinstance(holder.get("environment"), dict):
            holder["environment"] = dict.fromkeys(holder["environment"], HIDDEN)
    return shown
