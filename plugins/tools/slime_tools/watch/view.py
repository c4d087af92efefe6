"""What the page is told of a run: read from its directory as it grows, and sent as far as a reader lacks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from slime.observe.metrics import STAGES, read_rows
from slime.observe.status import RUNNING
from slime.run_config import flat
from slime.run_dir import CONFIG
from slime.types import RunStatus
from slime_observers.console import summary
from slime_tools.watch import answers, facts
from slime_tools.watch.progress import RunProgress

Told = dict[str, Any]
Have = Mapping[str, str]
"""The cursors of what a reader has: of the curves of a stage by its name, and of `samples`."""


class RunView:
    """One run, watched.

    Args:
        folder: the run directory.
        ended: how the run ended, if it says so itself, as its last act.
    """

    def __init__(self, folder: Path, ended: RunStatus | None = None) -> None:
        self.folder, self._ended = folder, ended
        self.progress = RunProgress(folder)
        self._config: tuple[list[int], facts.Config] = ([], {})

    @property
    def config(self) -> facts.Config:
        """As `facts.read_config`; read again when a session of the run has written it."""
        stamp = _stamp(self.folder / CONFIG)
        if stamp != self._config[0]:
            self._config = (stamp, facts.read_config(self.folder))
        return self._config[1]

    def told(self, have: Have) -> Told:
        """What a reader lacks: always the head, and what changed of the curves and of the names of samples' files.

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
        told = {"name": self.folder.name, "head": head, "warnings": facts.warnings_of(self.folder)}
        told["curves"] = {
            name: part
            for name, stage in self.progress.stages.items()
            if (part := stage.curves.since(have.get(name, "")))
        }
        names = answers.names(self.folder / "samples")
        cursor = json.dumps([len(names), *([name, _stamp(self._samples(name))] for name in answers.newest(names))])
        if cursor != have.get("samples"):
            told["samples"] = {"cursor": cursor, "names": names}
        return told

    def _samples(self, name: str) -> Path:
        return self.folder / f"samples/{name}.jsonl"

    def samples(self, name: str) -> Told:
        """Those of a file of `samples/`.

        Raises:
            SlimeError: a line is no sample.
            FileNotFoundError: there is no such file.
        """
        if name not in answers.names(self.folder / "samples"):
            raise FileNotFoundError(name)
        return answers.shown(self._samples(name))

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
    configs = [flat(view.config) for view in views]
    keys = sorted({key for config in configs for key in config})
    rows = [{"key": key, "values": [str(config.get(key, "-")) for config in configs]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def _stamp(path: Path) -> list[int]:
    try:
        found = path.stat()
    except FileNotFoundError:  # just removed, for lack of room
        return []
    return [found.st_ino, found.st_size]
