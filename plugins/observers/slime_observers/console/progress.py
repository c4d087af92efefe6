"""The progress of a stage: a live bar on a terminal, plain lines anywhere else.

No thread: the display changes when the driver says something, and lines that others print (warnings) appear above it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slime.events import (
    EngineBack,
    EngineLost,
    Evaluation,
    Event,
    Phase,
    Samples,
    StageBegan,
    StageEnded,
    Step,
    TrainersLost,
)
from slime.observe.metrics import ENTROPY, HELD_OUT, LENGTH, LOSS, REWARD, TOKENS_PER_S
from slime.printable import printable
from slime.types import RL, SFT, Sample

LINE_INTERVAL_S = 2.0
"""Without a terminal, steps shorter than this share a line."""
REFRESH_INTERVAL_S = 0.1
"""A status that changes faster than this is not drawn each time: thousands of samples finish in a step."""
ETA_STEPS = 20
"""Latest steps whose mean wall time, times the steps left, is the ETA."""
SAMPLE_CHARACTERS = 60
"""Most characters of a prompt and of a response."""
SHOWN = {
    REWARD: ("reward", "{:.3f}"),
    HELD_OUT: ("held-out", "{:.3f}"),
    LENGTH: ("length", "{:,.0f}"),
    ENTROPY: ("entropy", "{:.3f}"),
    LOSS: ("loss", "{:.4f}"),
    TOKENS_PER_S: ("tokens/s", "{:,.0f}"),
}
ONLY_IN = {LOSS: SFT, ENTROPY: RL}
"""Stage that a metric is shown in. The loss of a policy gradient does not fall while the policy gets better."""


class ProgressLine:
    """Shows the progress of the stage that runs, as `Progress`; a subscriber of the run's events."""

    def __init__(self, *, live: bool = True) -> None:
        self._live, self._stack = live, ExitStack()
        self._stage: Progress | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageBegan):
            stage = Progress(event.stage, event.total, event.done, live=self._live)
            self._stage = self._stack.enter_context(stage)
        elif isinstance(event, EngineLost | EngineBack | TrainersLost):
            self._note(event)
        elif self._stage is not None:
            self._tell(self._stage, event)

    def _note(self, event: EngineLost | EngineBack | TrainersLost) -> None:
        """A line of its own, above the bar."""
        if isinstance(event, TrainersLost):
            ranks = "1 trainer rank starts" if event.num_ranks == 1 else f"{event.num_ranks} trainer ranks start"
            after = f"after {event.after}" if event.after else "from the beginning"
            said = f"{event.why}; {ranks} again {after} ({event.restart} of {event.of})"
        elif isinstance(event, EngineLost):
            starts = f"{event.engine} starts again ({event.restart} of {event.of})"
            said = f"{event.why}; {starts if event.of else 'it is left out until it answers'}"
        elif event.seconds is None:
            said = f"{event.engine} takes requests"
        else:
            does = "is up" if event.is_new else "takes requests again"
            said = f"{event.engine} {does}, {event.seconds:.0f} s after its end"
        console = self._stage.console if self._stage else Console(highlight=False)
        console.print(printable(said), markup=False, soft_wrap=True)

    def _tell(self, stage: Progress, event: Event) -> None:
        match event:
            case Phase():
                stage.status(event.name, event.done, event.total)
            case Samples():
                stage.samples([sample for group in event.groups for sample in group.samples])
            case Evaluation():
                stage.values(event.values, event.step)
            case Step(complete=True):
                stage.step(event.step, event.values)
            case StageEnded():
                self._stack.close()
                self._stage = None


class Progress:
    """Progress of one stage; a context manager that leaves its last state on the screen.

    Args:
        stage: what the stage is called (`sft`, `rl`).
        total: steps of the whole stage.
        done: steps already done by the run this one continues.
        live: a bar if the output is a terminal; off prints lines there too.
        console: where to; standard output unless given.
    """

    def __init__(
        self, stage: str, total: int, done: int = 0, *, live: bool = True, console: Console | None = None
    ) -> None:
        self._stage, self._total, self._done = stage, total, done
        self.console = console or Console(highlight=False)
        live = live and self.console.is_terminal and not self.console.is_dumb_terminal
        self._live = Live(console=self.console, auto_refresh=False) if live else None
        self._values: dict[str, float] = {}
        self._scored_at = 0
        self._status = ""
        self._samples: list[Sample] = []
        self._ends = deque([time.monotonic()], maxlen=ETA_STEPS + 1)
        self._printed = self._drawn = float("-inf")

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        self._show()
        return self

    def status(self, phase: str, done: int | None = None, total: int | None = None) -> None:
        """Show the phase of the running step: `generate 12/32`, `train`, `publish`."""
        self._status = phase if done is None else f"{phase} {done}/{total}"
        if time.monotonic() - self._drawn >= REFRESH_INTERVAL_S:
            self._show()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Step number `step` of `total` is done; `values` are its metrics, of which the known ones are shown."""
        self._done, self._status = step, ""
        self._ends.append(time.monotonic())
        self.values(values, step)
        if not self._live:
            self._print_line()

    def samples(self, samples: Sequence[Sample]) -> None:
        """Show the best and the worst of them on a terminal."""
        judged = [sample for sample in samples if sample.reward is not None]
        best = max(judged, key=lambda sample: sample.reward or 0.0, default=None)
        worst = min(judged, key=lambda sample: sample.reward or 0.0, default=None)
        self._samples = [sample for sample in (best, worst) if sample is not None]
        self._show()

    def values(self, values: Mapping[str, float], step: int) -> None:
        """Show metrics of the weights behind `step`, which need not be finished: an evaluation is part of it."""
        if len(self._ends) == 1:  # no step ended yet: what ran until now is no part of one
            self._ends[0] = time.monotonic()
        shown = [name for name in SHOWN if name in values and ONLY_IN.get(name, self._stage) == self._stage]
        self._values |= {name: values[name] for name in shown}
        if HELD_OUT in values:
            self._scored_at = step
        self._show()

    def __exit__(self, *raised: object) -> None:
        if self._live:
            self._show()
            self._live.stop()

    def _show(self) -> None:
        if self._live:
            self._drawn = time.monotonic()
            self._live.update(self._render(), refresh=True)

    def _render(self) -> Group:
        bar = Table.grid(padding=(0, 2, 0, 0))
        bar.add_row(
            Text(self._stage, style="bold"),
            ProgressBar(total=max(self._total, 1), completed=self._done, width=30),
            Text(f"{self._done}/{self._total}"),
            Text(f"eta {self._eta()}", style="cyan"),
            Text(self._status, style="dim"),
        )
        lines = [f"     {self._shown()}", *(f"     {_line(sample)}" for sample in self._samples)]
        return Group(bar, *(Text(printable(line), overflow="ellipsis", no_wrap=True) for line in lines))

    def _print_line(self) -> None:
        now = time.monotonic()
        if now - self._printed < LINE_INTERVAL_S and self._done < self._total:
            return
        self._printed = now
        line = f"{self._stage} {self._done}/{self._total}  {self._shown()}  eta {self._eta()}"
        self.console.print(line, markup=False, soft_wrap=True)

    def _shown(self) -> str:
        known = [name for name in SHOWN if name in self._values]
        scored = {HELD_OUT: f" (step {self._scored_at})"}
        return "  ".join(
            f"{SHOWN[name][0]} {SHOWN[name][1].format(self._values[name])}{scored.get(name, '')}" for name in known
        )

    def _eta(self) -> str:
        if len(self._ends) < 2:
            return "-"
        seconds_per_step = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return duration(seconds_per_step * (self._total - self._done))


def _line(sample: Sample) -> str:
    asked = sample.prompt.messages[-1]["content"] if sample.prompt.messages else ""
    return f"{sample.reward:+.3f}  {_short(asked)}  ->  {_short(sample.response)}"


def _short(text: object) -> str:
    """The end of a text in a line: there an answer stands, and a question is asked."""
    line = " ".join(str(text).split())
    return line if len(line) <= SAMPLE_CHARACTERS else f"...{line[-SAMPLE_CHARACTERS:]}"


def duration(seconds: float) -> str:
    """Seconds for people: 75 -> '1:15', 4000 -> '1:06:40'."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"
