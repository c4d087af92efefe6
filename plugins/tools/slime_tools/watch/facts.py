"""How a run stands, from the files of its directory: for the page's head and for the list of runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from slime import run_config
from slime.checkpoints import published
from slime.observe import status as statuses
from slime.run_dir import CONFIG, step_of
from slime.types import SFT, RunStatus
from slime_tools.watch.diary import NOW, WARNINGS

MAX_WARNINGS = 20
"""The newest, on the page."""

Config = Mapping[str, Any]
OF_THE_FOLDER = ("run.name", "run.dir", "weights.path")
"""Keys that differ from run to run and say nothing of what they do, beside those whose values are digests."""
DIGEST = re.compile("[0-9a-f]{32,}")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Thirty times as fast as OmegaConf's, which counts for hundreds of runs; like that one it leaves dates texts."""

    yaml_implicit_resolvers = {
        first: [each for each in found if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_config(folder: Path) -> Config:
    """The config of the run, without the values of environment variables; empty if there is none yet.

    Raises:
        SlimeError: the file is no config.
    """
    path = folder / CONFIG
    if not path.exists():
        return {}
    try:
        found = yaml.load(path.read_bytes(), _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(keys, dict) for keys in found.values()):
        found = run_config.read_config(path)  # says what is wrong
    return run_config.shown_config(found)


def compared(config: Config) -> dict[str, str]:
    """What a run is compared with others by: the values of its keys as texts."""
    flat = {key: str(value) for key, value in run_config.flat(config).items() if key not in OF_THE_FOLDER}
    return {key: value for key, value in flat.items() if not DIGEST.fullmatch(value)}


def but_for_its_seed(compared: Mapping[str, str]) -> str:
    """The same for two runs that differ in nothing but their seeds."""
    return hashlib.sha256(
        repr(sorted((key, value) for key, value in compared.items() if not key.endswith("seed"))).encode()
    ).hexdigest()[:8]


def of(config: Config, key: str) -> Any:
    """The value of a dotted key; None if it is not there."""
    value: Any = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def num_steps(config: Config, stage: str) -> int | None:
    """Steps of the whole stage, if the config says it."""
    found = of(config, "sft.num_steps" if stage == SFT else "run.num_steps")
    return found if isinstance(found, int) else None


def state_of(folder: Path, ended: RunStatus | None = None) -> dict[str, Any]:
    """`status.json`, with what the run does now while it runs.

    Args:
        ended: how, if the run itself asks, as its last act.
    """
    status = statuses.read(folder)
    state = ended or status.state or "not known"
    now = _read(folder / NOW) if state == statuses.RUNNING else {}
    return {**asdict(status), "state": state, "now": now}


def last_checkpoint(folder: Path, config: Config) -> dict[str, Any] | None:
    """Which step the newest one is of, and when it was saved (Unix seconds)."""
    saved = published(folder / "checkpoints") if (folder / "checkpoints").is_dir() else []
    if not saved:
        return None
    step = step_of(saved[-1].step, num_steps(config, SFT) or 0)
    return {"step": step, "time": saved[-1].path.stat().st_mtime}


def warnings_of(folder: Path) -> Sequence[Mapping[str, Any]]:
    """The newest warnings, each with its `time` and `text`, and in `count` how often it came in a row."""
    path = folder / WARNINGS
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            warning = json.loads(line)
        except ValueError:  # torn by a kill, or still being written
            continue
        if found and found[-1]["text"] == warning["text"]:
            found[-1] |= {"time": warning["time"], "count": found[-1]["count"] + 1}
        else:
            found.append({**warning, "count": 1})
    return found[-MAX_WARNINGS:]


def runs_on(config: Config) -> list[str]:
    """What the run is of, in a few words each."""
    said = {
        "model": of(config, "model.name"),
        "algorithm": of(config, "algo.name"),
        "reward": of(config, "reward.name"),
        "device": of(config, "cluster.device"),
        "trainer ranks": of(config, "cluster.num_trainers"),
    }
    return [f"{name} {value}" for name, value in said.items() if value]


def num_devices(config: Config) -> int | None:
    counts = [of(config, f"cluster.{key}") for key in ("num_nodes", "devices_per_node")]
    return counts[0] * counts[1] if all(isinstance(count, int) for count in counts) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # not there yet, or gone
        return {}
    return found if isinstance(found, dict) else {}
