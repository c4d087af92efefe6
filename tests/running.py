"""Whole runs as a user starts them: `python -m slime ...` in a process of its own, watched for silence and strays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from slime.config.paths import resolve
from slime.observe.metrics import read_rows
from slime_cluster.ray.reaper import wait_until_gone
from slime_testing.forked import of_a_run
from slime_testing.patience import Patience
from stack_dumps.dumps import look

SILENCE_S = 60.0
"""A run that writes nothing anywhere for this long hangs, unless others keep the cores."""
GONE_S = 60.0
"""Every process of a run that ended is gone after this long. On an idle machine it takes a moment."""

START_S = 600
"""What a run waits for its processes; a cluster's own limit is for a machine that does nothing else."""

HELD_OUT = "heldout.jsonl"
"""In the folder of a run: the first of the recipe's held-out prompts."""
DEMONSTRATIONS = "demonstrations.jsonl"
"""Likewise of its demonstrations: a run renders all of them, and the recipe's take it a second."""
_NUM_HELD_OUT, _NUM_DEMONSTRATIONS = 32, 512

TINY = {
    "run.num_steps": 4,
    "sft.num_steps": 4,
    "sft.lr_warmup_steps": 1,
    "sft.path": DEMONSTRATIONS,
    "eval.interval": 2,
    "eval.path": HELD_OUT,
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "train.checkpoint.interval": 2,
    "algo.entropy_coef": 0.01,  # four supervised steps earn no reward yet; this moves the weights
}
"""The laptop recipe, shortened to the seconds that its start takes."""
NO_CHECKPOINTS = {"train.checkpoint.interval": "null"}
"""For runs that nobody resumes: the first one takes seconds."""
NO_STOP = {"observe.zero_variance_steps": 0}
"""For runs that go on until they are killed, whatever they learn."""
SPREAD = {
    "+rollout.sglang.tp_size": 2,
    "+rollout.sglang.dp_size": 2,
    "+rollout.sglang.enable_dp_attention": "true",
    "+rollout.sglang.enable_dp_lm_head": "true",
    "+rollout.sglang.moe_dense_tp_size": 1,
    "+rollout.sglang.ep_size": 2,
}
"""An engine of two ranks: attention by data, experts over both."""
_STARTED: list[subprocess.Popen[bytes]] = []


def write_rows(folder: Path) -> None:
    """What `TINY` names, in the folder that a run starts in."""
    files = {HELD_OUT: ("arithmetic-heldout", _NUM_HELD_OUT), DEMONSTRATIONS: ("arithmetic-sft", _NUM_DEMONSTRATIONS)}
    for name, (data, num_rows) in files.items():
        rows = resolve(f"pkg://slime_rewards.math/data/{data}.jsonl").read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(rows[:num_rows]))


@dataclass
class Run:
    """One `slime` command of `python`, running in `folder`, by way of the command `through`; its run directory is
    `folder/runs/<name>`. Its engines are `forked` where how they start and end is not the question. With `typed` its
    words are these, instead of those of a model, a cluster and settings."""

    folder: Path
    model: str = "glm4-tiny"
    cluster: str = "local"
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    through: Sequence[str] = ()
    silence_s: float = SILENCE_S
    shortened: Mapping[str, Any] = field(default_factory=lambda: TINY)
    python: Path = Path(sys.executable)
    forked: bool = False
    typed: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.path = self.folder / "runs/it"
        self.output = self.folder / "output.txt"
        self.family: list[psutil.Process] = []
        self.temporary: set[Path] = set()

    @property
    def words(self) -> list[str]:
        """Of the command; its files of rows are those of `write_rows`."""
        if self.typed:
            return [*self.typed]
        settings = {"cluster.start_timeout_s": START_S, **self.shortened, "run.name": "it", **self.settings}
        if settings.get("eval.path") == "null":  # without which the interval does nothing, and is refused
            settings.pop("eval.interval", None)
        return [f"+model={self.model}", f"+cluster={self.cluster}", *(f"{k}={v}" for k, v in settings.items())]

    def start(self) -> Run:
        write_rows(self.folder)
        forked = of_a_run() if self.forked else {}
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self.through, self.python, "-m", "slime", *self.words],
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **forked, **self.environment},
            )
        _STARTED.append(self.process)
        return self

    def start_beside(self, other: Run) -> Run:
        """Start this command on the run directory of `other`."""
        self.folder.mkdir()
        self.settings = {**self.settings, "run.dir": other.path.parent}
        return self.start()

    def finish(self) -> int:
        """Wait for the end; returns the exit code."""
        self.until(lambda: False)
        return self.process.returncode

    def succeed(self) -> Run:
        assert self.finish() == 0, self.text()
        return self

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something to happen or for the end; silence fails with every stack."""
        heard, patience = self._traces(), Patience(self.silence_s, self._pids)
        looked = time.monotonic()
        while self.process.poll() is None and not reached():
            time.sleep(0.02)  # a step takes half a second, and what is waited for may last no longer
            if time.monotonic() < looked + 1:
                continue
            looked = time.monotonic()
            if (now := self._traces()) != heard:
                heard = now
                patience.renew()
            if patience.is_over():
                stacks = "\n\n".join(map(str, look([self.process.pid], self.path / "logs")))
                self.kill()
                raise AssertionError(f"nothing happened for {self.silence_s:g} s\n{self.text()}\n{stacks}")

    def remember(self) -> None:
        """Every process that it has started so far, and what these keep outside of its directory: the scratch folders
        of engines, and shared memory."""
        self.family = [self.process, *psutil.Process(self.process.pid).children(recursive=True)]
        for process in self.family[1:]:
            with suppress(psutil.NoSuchProcess):
                scratch = process.environ().get("SLIME_ENGINE_SCRATCH")
                shared = [entry.path.removesuffix(" (deleted)") for entry in process.memory_maps()]
                kept = [scratch, *(path for path in shared if path.startswith("/dev/shm/"))]
                self.temporary |= {Path(path) for path in kept if path}

    def litter(self) -> list[Path]:
        """What is left of all that."""
        return [path for path in self.temporary if path.exists()]

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Signal the driver alone, after `remember`. It stands still meanwhile, for several steps take no longer."""
        self.process.send_signal(signal.SIGSTOP)
        self.remember()
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        assert Patience(self.silence_s, self._pids).wait_for(lambda: self.process.poll() is not None), self.text()

    def strays(self) -> list[str]:
        """What is left of the processes that lived at `remember`, after the time they get to go."""
        alive = wait_until_gone({process for process in self.family if isinstance(process, psutil.Process)}, GONE_S)
        return [command_of(process) for process in alive]

    def rows(self, stage: str) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.path / "metrics.jsonl") if row["stage"] == stage]

    def losses(self) -> list[tuple[str, int, float]]:
        """Stage, step and loss of every optimizer step."""
        rows = [*self.rows("sft"), *self.rows("rl")]
        return [(row["stage"], row["step"], row["train/loss"]) for row in rows if "train/loss" in row]

    def weights(self) -> dict[str, bytes]:
        """The exported tensors, byte for byte."""
        from safetensors.torch import load_file  # torch takes seconds, and every test loads this module

        files = [load_file(file) for file in sorted((self.path / "export").glob("*.safetensors"))]
        return {name: tensor.numpy().tobytes() for file in files for name, tensor in file.items()}

    def has_step(self, stage: str, step: int) -> bool:
        return any(row["step"] >= step for row in self.rows(stage))

    def text(self) -> str:
        return self.output.read_text()

    def _pids(self) -> list[int]:
        driver = psutil.Process(self.process.pid)
        return [driver.pid, *(child.pid for child in driver.children(recursive=True))]

    def _traces(self) -> list[int]:
        """The sizes of all that it has written. A checkpoint in the making is renamed while it is looked at: `walk`
        passes over folders that are gone, where `glob` raises."""
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names]
        sizes = []
        for file in (str(self.output), *sorted(files)):
            with suppress(FileNotFoundError):
                sizes.append(os.stat(file).st_size)
        return sizes


def command_of(process: psutil.Process) -> str:
    """Its words; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def end_family(leaders: Iterable[psutil.Process]) -> None:
    """Kill processes and all that they have started, some of which end by themselves meanwhile."""
    family = [*leaders]
    for leader in family[:]:
        with suppress(psutil.NoSuchProcess):
            family += leader.children(recursive=True)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=GONE_S)


def end_all() -> None:
    """Kill what a failed test left running; the rest of a run follows its driver."""
    while _STARTED:
        process = _STARTED.pop()
        process.kill()
        process.wait()
