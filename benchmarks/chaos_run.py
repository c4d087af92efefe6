"""Runs that `chaos.py` breaks: started as a user starts them, with a plugin by which the moment is found."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from chaos_parts import folder

from slime_tools.drill.outcome import Outcome
from slime_tools.drill.processes import members
from tests.running import Run
from tests.site import Site

SETTINGS: Mapping[str, Any] = {
    "sft.num_steps": 20,
    "sft.lr_warmup_steps": 1,
    "run.num_steps": 6,
    "eval.path": "null",
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "train.optimizer.lr": 1e-3,
    "train.checkpoint.interval": 2,
    "reward": "unequal",
}
LIMITS = {"cluster.hang_timeout_s": 15, "rollout.request_timeout_s": 12, "reward.timeout_s": 3}
"""Seconds, instead of minutes."""
LONG = {
    **SETTINGS,
    **LIMITS,
    "sft.num_steps": 2,
    "run.num_steps": 500,
    "observe.zero_variance_steps": 0,
    "train.checkpoint.interval": 100,
    "rollout.restarts": 0,
}
OWN_SHARED_MEMORY = 'mount --bind "$0" /dev/shm && exec "$@"'
KEPT = ("torchinductor_",)
"""torch's cache of compiled kernels."""
POLL_S = 0.002
PATIENCE_S = 300.0
"""Of everything that is waited for: a start takes a minute on a busy machine, and Ray another to miss its GCS."""


@dataclass
class Chaos(Run):
    """A run with the plugin, in folders of its own, so that what it leaves behind is seen."""

    shortened: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    silence_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        super().__post_init__()
        self.marks, self.scratch, self.shared = (self.folder / name for name in ("marks", "tmp", "shm"))
        self.scratch.mkdir()
        self.shared.mkdir()
        self.through = ["unshare", "--mount", "sh", "-c", OWN_SHARED_MEMORY, str(self.shared)]
        site = Site(self.folder / "site")
        plugin = Path(__file__).with_name("chaos_plugin.py").read_text()
        site.add("slime-plugin-chaos", plugin, conf={"reward/unequal.yaml": "name: unequal\n"})
        self.environment = {
            "PYTHONPATH": str(site.folder),
            "CHAOS_MARKS": str(self.marks),
            "TMPDIR": str(self.scratch),
            "OMP_NUM_THREADS": "1",
        }

    def start(self) -> Chaos:
        self.marks.write_text("")
        super().start()
        return self

    def lines(self) -> list[str]:
        return self.marks.read_text().splitlines()

    def reach(self, verb: str, times: int = 1) -> None:
        """Wait until `verb` has begun `times` more times."""
        line, deadline = f"{verb} begin", time.monotonic() + PATIENCE_S
        wanted = self.lines().count(line) + times
        while self.lines().count(line) < wanted:
            missed = f"{verb} did not begin {times} times: {Counter(self.lines())}\n{self.text()}"
            assert self.process.poll() is None, missed
            assert time.monotonic() < deadline, missed
            time.sleep(POLL_S)

    def is_within(self, verb: str) -> bool:
        return self.lines()[-1] == f"{verb} begin"

    def member(self, role: str) -> psutil.Process | None:
        """The first process of the run that has this role, one of `slime_tools.drill.processes`."""
        there = members(psutil.Process(self.process.pid))
        return next((process for each, process in there if each == role), None)

    def litter(self) -> str:
        """What stays in the temporary folder and in shared memory, without the caches of others."""
        left = [*self.scratch.iterdir(), *self.shared.iterdir()]
        return " ".join(path.name for path in left if not path.name.startswith(KEPT)) or "none"

    def ended(self) -> list[str]:
        """After the driver's end: processes still there at once and after GONE_S, and litter."""
        began = time.monotonic()
        strays = self.strays()
        seconds = f"{time.monotonic() - began:.1f} s"
        return [f"{len(strays)}: {strays[0][:60]}" if strays else f"none after {seconds}", self.litter()]

    def last_line(self) -> str:
        lines = self.text().strip().splitlines()
        said = next((line for line in reversed(lines) if line.startswith("slime: ")), lines[-1])
        return said.replace(f"{self.folder}/", "")


@contextmanager
def running(**settings: Any) -> Iterator[Chaos]:
    """A run that has started; ended with all it started, whatever happens."""
    with folder() as path:
        run = Chaos(path, settings=settings).start()
        try:
            yield run
        finally:
            if run.process.poll() is None:
                run.kill()
            run.strays()


@dataclass(frozen=True)
class Reference:
    """The run that nobody disturbs: what the others must end with, and median seconds of its verbs."""

    run: Chaos
    seconds: Mapping[str, float]
    result: Outcome


@functools.cache
def reference() -> Reference:
    path = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    run = Chaos(path).start()
    seconds = durations(run)
    return Reference(run, seconds, Outcome.of(run.path))


def durations(run: Chaos) -> dict[str, float]:
    """Median seconds of each verb; of the start, until the first one."""
    began: dict[str, float] = {}
    seconds: dict[str, list[float]] = {"start": []}
    seen, start = 0, time.monotonic()
    while run.process.poll() is None or seen < len(run.lines()):
        for line in run.lines()[seen:]:
            seen += 1
            verb, _, what = line.partition(" ")
            if what == "begin":
                began[verb] = time.monotonic()
                seconds["start"] = seconds["start"] or [began[verb] - start] if verb != "start" else []
            else:
                seconds.setdefault(verb, []).append(time.monotonic() - began[verb])
        time.sleep(POLL_S)
    assert run.process.returncode == 0, run.text()
    return {verb: sorted(values)[len(values) // 2] for verb, values in seconds.items()}
