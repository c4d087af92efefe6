"""`README.md` of an exported model: what the hub reads of it, and the facts of its run."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

import slime
from slime import files
from slime.checkpoints import published
from slime.config.hf import read_hf_config, scores
from slime.events import Complete, Event
from slime.observe.metrics import HELD_OUT, LOSS, REWARD, Row, read_rows
from slime.run_config import HIDDEN, read_config, shown_config
from slime.types import RL, SFT, TrackedRun

CARD = "README.md"
PACKAGES = ("torch", "megatron-core", "sglang", "transformers", "ray")
_MARK = "<!-- written by slime, SHA-256 of the text above: "
"""Ends a card; one that was edited since is kept."""


class ModelCard:
    """Writes `export/README.md` once the model is exported; a subscriber of the run's events."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run

    def __call__(self, event: Event) -> None:
        if isinstance(event, Complete):
            write(self._run.folder, self._run.folder / "export", sys.argv[1:])


def write(
    run: Path, export: Path, argv: Sequence[str] = (), position: Mapping[str, int] = MappingProxyType({})
) -> None:
    """Write the card of a model beside its weights, unless there is one that somebody wrote or edited. Raises
    SlimeError where the run directory is damaged or the disk is full.

    Args:
        run: its run directory.
        export: its folder, which may be on the disk of another host; then nothing is written.
        argv: words of the command that made it; none: not known.
        position: of its checkpoint (`sft_step`, `rl_step`); empty: the run's last.
    """
    if (export / "config.json").is_file() and is_ours(export / CARD):
        said = text(run, export, argv, position)
        with files.disk_errors(export):
            files.write_atomic(export / CARD, f"{said}\n{_MARK}{_digest(said)} -->\n".encode())


def is_ours(card: Path) -> bool:
    """Whether it is as slime wrote it, or not there."""
    if not card.exists():
        return True
    said, mark, digest = card.read_bytes().decode(errors="replace").rpartition(f"\n{_MARK}")
    return bool(mark) and digest == f"{_digest(said)} -->\n"


def _digest(said: str) -> str:
    return hashlib.sha256(said.encode()).hexdigest()


def text(run: Path, export: Path, argv: Sequence[str], position: Mapping[str, int]) -> str:
    """The card, of the files in the run directory."""
    config = shown_config(read_config(run / "config.yaml"))
    rows = [row for row in read_rows(run / "metrics.jsonl") if row["step"] <= position.get(f"{row['stage']}_step", inf)]
    front = yaml.safe_dump(_front(config, export, rows), sort_keys=False, allow_unicode=True)
    table = "".join(f"| {name} | {_cell(value)} |\n" for name, value in _facts(config, rows).items() if value)
    data = "".join(f"| {' | '.join(map(_cell, row))} |\n" for row in _data(config, run))
    return (
        f"---\n{front}---\n\n# {config['run']['name']}\n\n"
        f"`{config['model']['name']}`, trained with [slime](https://github.com/slime-rl/slime).\n\n"
        f"| | |\n|---|---|\n{table}\n"
        f"## Data\n\n| key | rows | BLAKE2b of what was read |\n|---|---|---|\n{data}\n"
        f"## Made by\n\n{_command(argv)}"
        f"{', '.join(_versions())}.\n"
    )


def _front(config: Mapping[str, Any], export: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """What the hub reads; nothing is said that is not known, such as a licence."""
    judges = scores(read_hf_config(str(export)))
    sets = [source for _, section in _sets(config) if (source := section.get("source") or _hub_id(section["path"]))]
    sets += [source for key in ("path", "eval_path") if (source := _hub_id(config["sft"][key]))]
    learns = any(row["stage"] == RL for row in rows)
    front = {
        "base_model": config["model"]["source"],
        "library_name": "transformers",
        "pipeline_tag": "text-classification" if judges else "text-generation",
        "tags": ["slime", *(["reinforcement-learning", config["algo"]["name"]] if learns else [])],
        "datasets": list(dict.fromkeys(sets)),
    }
    return {name: value for name, value in front.items() if value}


def _hub_id(path: str | None) -> str:
    if not path or not path.startswith("hf://"):
        return ""
    owner, name, *_ = path.removeprefix("hf://").removeprefix("datasets/").split("/")
    return f"{owner}/{name}".partition("@")[0].partition(":")[0]


def _sets(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for home in ("data", "eval"):
        for key, section in {home: config[home], **_named(home, config[home]["sets"])}.items():
            if section["path"] not in (None, "???"):
                yield key, section


def _named(home: str, sets: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{home}.sets.{name}": own for name, own in sets.items()}


def _facts(config: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    steps = {stage: max((row["step"] for row in rows if row["stage"] == stage), default=0) for stage in (SFT, RL)}
    algo, rollout = config["algo"], config["rollout"]
    batch = f"{rollout['prompts_per_step']} prompts x {rollout['samples_per_prompt']} samples a step"
    return {
        "supervised steps": steps[SFT] and f"{steps[SFT]}, of {config['sft']['batch_size']} rows",
        "reinforcement-learning steps": steps[RL] and f"{steps[RL]}, of {batch}",
        "algorithm": steps[RL] and f"{algo['name']}, advantages by {algo['advantage']}",
        "learning rate": steps[RL] and config["train"]["optimizer"].get("lr"),
        "reward": steps[RL] and config["reward"]["name"],
        "held-out reward, before and after": _ends(rows, RL, HELD_OUT),
        "training reward, first and last step": _ends(rows, RL, REWARD),
        "supervised loss, first and last step": _ends(rows, SFT, LOSS),
        "seed": config["run"]["seed"],
    }


def _ends(rows: Sequence[Row], stage: str, name: str) -> str:
    values = [row[name] for row in rows if row["stage"] == stage and name in row]
    return f"{values[0]:.4g} -> {values[-1]:.4g}" if values else ""


def _data(config: Mapping[str, Any], run: Path) -> Iterator[tuple[str, str, str]]:
    """Every set: its key, its path, and the digest by which a resume recognises it, of those that are trained on."""
    saved = published(run / "checkpoints")
    state = saved[-1].driver_state() if saved else {}
    prompts, digests = state.get("prompts", {}), dict[str, Any]()
    digests["data"] = prompts.get("content_hash")
    digests |= {f"data.sets.{name}": own.get("content_hash") for name, own in prompts.get("sets", {}).items()}
    if config["sft"]["num_steps"]:
        yield "sft.path", _place(config["sft"]["path"]), state.get("demonstrations", {}).get("content_hash", "")
    for key, section in _sets(config):
        yield f"{key}.path", _place(section["path"]), digests.get(key) or ""


def _place(path: str) -> str:
    """A path as it is typed, but for folders of this machine."""
    return Path(path).name if path.startswith(("/", "~")) else path


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _command(argv: Sequence[str]) -> str:
    hidden = [f"{word.partition('=')[0]}={HIDDEN}" if ".environment." in word else word for word in argv]
    return f"    slime {shlex.join(hidden)}\n\n" if argv else ""


def _versions() -> Iterator[str]:
    yield f"slime {slime.__version__}"
    yield f"Python {platform.python_version()}"
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
