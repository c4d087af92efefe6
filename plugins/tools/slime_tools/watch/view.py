"""What the page is told of a run: read from its directory as it grows, and sent as far as a reader lacks it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from slime.observe.metrics import STAGES, read_rows
from slime.observe.status import RUNNING, STATUS
from slime.run_dir import CONFIG
from slime.types import RunStatus
from slime_observers.console import summary
from slime_tools.watch import answers, facts, runs
from slime_tools.watch.diary import DEMONSTRATIONS, NOW
from slime_tools.watch.progress import MAX_POINTS, RunProgress

Told = dict[str, Any]
Have = Mapping[str, str]
"""The cursors of what a reader has: of the curves of a stage by its name, and of `samples`."""
SHOWN = "demonstrations"
"""Name of what supervised steps show the model, among those of samples' files."""


class RunView:
    """One run, watched.

    Args:
        folder: the run directory.
        ended: how the run ended, if it says so itself, as its last act.
        name: as people know it; empty: that of the folder.
        max_points: of each curve.
    """

    def __init__(
        self, folder: Path, ended: RunStatus | None = None, *, name: str = "", max_points: int = MAX_POINTS
    ) -> None:
        self.folder, self._ended, self.name = folder, ended, name or folder.name
        self.progress = RunProgress(folder, max_points)
        self._config: tuple[list[int], facts.Config] = ([], {})
        self._compared: tuple[list[int], dict[str, str]] = ([], {})
        self._brief: tuple[list[list[int]], Told] = ([], {})

    @property
    def config(self) -> facts.Config:
        """As `facts.read_config`; read again when a session of the run has written it."""
        stamp = _stamp(self.folder / CONFIG)
        if stamp != self._config[0]:
            self._config = (stamp, facts.read_config(self.folder))
        return self._config[1]

    @property
    def compared(self) -> dict[str, str]:
        """As `facts.compared`."""
        config = self.config
        if self._compared[0] != self._config[0]:
            self._compared = (self._config[0], facts.compared(config))
        return self._compared[1]

    def brief(self) -> Told:
        """As `runs.brief`; read again when a file has changed, and while somebody may kill the run."""
        stamps = [_stamp(self.folder / name) for name in (STATUS, CONFIG, "metrics.jsonl", NOW)]
        if stamps != self._brief[0] or self._brief[1]["state"] == RUNNING:
            self._brief = (stamps, runs.brief(self.folder))
        return self._brief[1]

    def told(self, have: Have, most: int = MAX_POINTS, names: Sequence[str] | None = None) -> Told:
        """What a reader lacks: always the head, and what changed of the curves and of the names of samples' files.

        Args:
            most, names: as of `Curves.since`.

        Raises:
            SlimeError: a line of the metrics is damaged.
        """
        self.progress.read()
        config = self.config
        state = facts.state_of(self.folder, self._ended)
        totals = {stage: facts.num_steps(config, stage) for stage in STAGES}
        head = state | self.progress.head(totals, running=state["state"] == RUNNING)
        head |= {"checkpoint": facts.last_checkpoint(self.folder, config), "runs_on": facts.runs_on(config)}
        head |= {"devices": facts.num_devices(config), "alarm": facts.of(config, "observe.logprob_alarm")}
        told = {"name": self.name, "head": head, "warnings": facts.warnings_of(self.folder)}
        told["group"] = facts.but_for_its_seed(self.compared)
        told["curves"] = {
            name: part
            for name, stage in self.progress.stages.items()
            if (part := stage.curves.since(have.get(name, ""), most, names))
        }
        kept = self._names()
        stamps = [len(kept), *([name, _stamp(self._samples(name))] for name in answers.newest(kept))]
        cursor = hashlib.sha256(repr(stamps).encode()).hexdigest()[:8]
        if cursor != have.get("samples"):
            told["samples"] = {"cursor": cursor, "names": kept}
        return told

    def _names(self) -> list[str]:
        return [SHOWN] * (self.folder / DEMONSTRATIONS).exists() + answers.names(self.folder / "samples")

    def _samples(self, name: str) -> Path:
        return self.folder / (DEMONSTRATIONS if name == SHOWN else f"samples/{name}.jsonl")

    def samples(self, name: str, wanted: answers.Wanted = answers.EVERYTHING) -> Told:
        """Those of a file of `samples/`, or, with an empty name, of all, the newest first.

        Raises:
            SlimeError: a line is no sample.
            FileNotFoundError: there is no such file.
        """
        kept = self._names()
        if name and name not in kept:
            raise FileNotFoundError(name)
        if name == SHOWN:
            return answers.demonstrations(self._samples(name))
        named = [name] if name else [each for each in reversed(kept) if each != SHOWN]
        return answers.shown([self._samples(each) for each in named], wanted)

    def same_prompt(self, name: str, prompt: str, other: str) -> Told:
        """What another file has of a prompt: as `samples`, of one prompt or none.

        Raises:
            SlimeError: a line is no sample.
            FileNotFoundError: there is no such file.
        """
        if not {name, other} <= set(self._names()) - {SHOWN}:
            raise FileNotFoundError(other)
        return answers.same_prompt(self._samples(name), prompt, self._samples(other))

    def texts(self) -> list[dict[str, str]]:
        """What is folded at the end of the page, each with its title.

        Raises:
            SlimeError: a line of the metrics is damaged.
        """
        found = {"Summary and files": summary.text(read_rows(self.folder / "metrics.jsonl"), self.folder)}
        installed = self.folder / "plugins.json"
        if installed.exists():
            plugins = json.loads(installed.read_bytes())
            versions = {f"{plugin['distribution']} {plugin['version']}" for plugin in plugins["installed"].values()}
            used = [f"{kind}: {item['name']} ({item['distribution']})" for kind, item in plugins["used"].items()]
            commit = facts.state_of(self.folder)["commit"]
            found["Versions"] = "\n".join([*[f"commit {commit}"] * bool(commit), *used, "", *sorted(versions)])
        if config := self.config:
            found["Config: every key"] = OmegaConf.to_yaml(OmegaConf.create(dict(config)))
        return [{"title": title, "text": text} for title, text in found.items()]


def differences(views: Sequence[RunView]) -> list[dict[str, Any]]:
    """The keys in which the configs of several runs differ, with the values of each run; `-` where a key is absent."""
    configs = [view.compared for view in views]
    keys = sorted({key for config in configs for key in config})
    rows = [{"key": key, "values": [config.get(key, "-") for config in configs]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _stamp(path: Path) -> list[int]:
    try:
        found = path.stat()
    except FileNotFoundError:  # just removed, for lack of room
        return []
    return [found.st_ino, found.st_size]
