"""Small Protocols that a plugin implements, without torch. Files of their own have a model family
(`slime.models.bridge`), an objective (`slime.objective`) and an estimator of advantages (`slime.estimator`)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from argparse import Namespace

    from slime.arguments import ArgumentParser
    from slime.conversation import Conversation
    from slime.types import Decision, Group, Message, RunStatus, Sample, Task, TrackedRun, Turn, Verdict

SampleRow = Mapping[str, Any]
"""One sample, as a line of `samples/*.jsonl` has it (docs/run-directory.md)."""
SampleTables = Mapping[str, Sequence[SampleRow]]
"""Samples that are kept of a step: `rollout/samples`, and `eval/samples` where the held-out prompts were scored."""


@runtime_checkable
class RewardModel(Protocol):
    """Scores one sample. Runs in a worker process that may be killed at its time or memory limit."""

    def score(self, sample: Sample) -> Verdict:
        """Judge `sample.response` against `sample.prompt.label`. May raise: that becomes an ERROR verdict.

        `sample` has no log-probs, loss mask and weight spans. What `score` starts is killed when it returns."""


@runtime_checkable
class GroupReward(Protocol):
    """Judges the samples of a prompt together, to rank or compare them: otherwise as `RewardModel`, with limits of time
    and memory for the group."""

    def score_group(self, samples: Sequence[Sample]) -> Sequence[Verdict]:
        """A verdict for each sample of one prompt that has a response, in their order; at least one has. A sample that
        has a verdict of its program keeps that."""


Reward = RewardModel | GroupReward


class Responder(Protocol):
    """Asks the model for a program: single responses, or conversations. The tokens stay here, so that those trained on
    are those sampled."""

    async def respond(self) -> Turn:
        """Sample a response to the task's prompt, to its end. One at a time.

        Asked again, it samples another one in the place of the one before. Where the engines are told to abort, this
        raises what no `except Exception` catches, and a later step runs the program again; then a first response goes
        on where it stopped.
        """

    def conversation(self, messages: Sequence[Message] | None = None, tools: Sequence[Any] = ()) -> Conversation:
        """A conversation of several turns. All those of an attempt are trained on, each as a sequence of its own.

        Args:
            messages: what it begins with; None: the prompt's.
            tools: JSON schemas of functions, as in the OpenAI API, which the chat template shows the model.
        """

    def rendered(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = False) -> str:
        """The chat template's text of these messages; `prompt` opens the model's turn after them."""

    def note(self, name: str, value: float) -> None:
        """Keep a number of this attempt, for `samples/` and, as a mean over attempts, `rollout/<name>_mean`."""


@runtime_checkable
class Program(Protocol):
    """Makes attempts: decides what the model is asked for one sample.

    Runs in a worker process with time and memory limits, one attempt at a time. With the attribute `in_driver = True`
    it runs in the driver's event loop beside thousands of others: it awaits and never blocks, and its crash is one of
    the run.
    """

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        """Make one attempt, with one response at least. None: the run's reward judges it. May raise: that becomes an
        ERROR verdict, and the sample is left out of its group's statistics."""


@runtime_checkable
class SampleFilter(Protocol):
    """Keeps or drops a rewarded group before training. A method `shape(group)`, called before `decide`, returns what is
    added to the reward of each sample: finite numbers, in the order of `group.samples`."""

    def decide(self, group: Group) -> Decision:
        """Keep, or drop with a reason."""


@runtime_checkable
class Stateful(Protocol):
    """A part of the driver that checkpoints keep: a source of rows, the buffer, or an estimator."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state: JSON's values, or the others that `slime.driver_state` holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly `state`, whatever was held before."""


@runtime_checkable
class BufferPolicy(Stateful, Protocol):
    """Holds groups between steps, and chooses for how long and in which order they come out.

    A step stores what it began and did not train on: groups aborted when it had enough, and finished ones that came
    too late. The next step asks for these before it takes new prompts. `slime.sampling.buffer` turns groups into plain
    values and back.
    """

    def put(self, group: Group, version: int) -> Decision:
        """Store a group aborted while the engines served weight `version`, unchanged; or refuse it with a reason, which
        becomes the metric `buffer/drop/<reason>`."""

    def take(self, count: int, version: int) -> list[Group]:
        """Remove at most `count` groups, to continue under weight `version`. New prompts make up for fewer."""

    def __len__(self) -> int:
        """Groups held, the metric `rollout/buffered_groups`."""


@runtime_checkable
class Tracker(Protocol):
    """Shows a run's metrics elsewhere than in metrics.jsonl. Lives in the driver, and is called between steps."""

    def start(self, run: TrackedRun) -> None:
        """Connect, before anything expensive starts; raising stops the run. A run that continues starts again with the
        same `run.folder`, where the tracker finds what it left there."""

    def resume(self, stage: str, step: int) -> None:
        """The run continues after this step (0: from its beginning). Later ones that were logged run again, and come
        again. Called also in mid-run, where trainers were lost."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """Take all metrics of a step, some perhaps not finite; `time` is in Unix seconds. Raising is told in a line,
        once, and the run goes on: the same row comes again with a later one."""

    def finish(self, status: RunStatus) -> None:
        """The last call; nobody waits for the devices any more."""


@runtime_checkable
class SampleTracker(Tracker, Protocol):
    """A tracker that shows what the model answered, too."""

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """Take what `samples/` keeps, after `log` of the step; `slime_observers.samples.rows` chooses among the rows
        and makes tables. Raising is told in a line, once, and these samples do not come again."""


@dataclass(frozen=True)
class Cause:
    """A cause of a difference between engine and trainer."""

    label: str  # in the alarm's line, in front of its nats a token
    todo: str  # what to do where it is the largest; `{settings}` stands for the engines' settings that matter


@runtime_checkable
class Explanation(Protocol):
    """Says why engine and trainer differ on the same tokens, when `observe.logprob_alarm` rings. Every installed one is
    asked; the run ends with what they say."""

    @property
    def causes(self) -> Mapping[str, Cause]:
        """By metric, `gap/<name>`, in the order of the alarm's line."""

    def measure(self, trainer: Any, micro_batches: Sequence[Any]) -> Mapping[str, float]:
        """The cost of each cause, in nats a token, and further metrics `gap/<name>`; empty for a run that it does not
        know. Called on all ranks alike, before the optimizer step; the weights must stay bit for bit the same.

        Args:
            trainer: this rank's `slime_megatron.train.trainer.Trainer`.
            micro_batches: of the first optimizer step, `slime_megatron.train.local_batch.LocalMicroBatch`.
        """


@runtime_checkable
class Verb(Protocol):
    """A verb `slime <name> ...`: a module with these two functions."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Say what it takes: `parser.description`, arguments and flags as in `argparse`, and `parser.add_keys()` if it
        takes the keys of a run. Must be quick: completion and `--help` call it, too."""

    def run(self, args: Namespace) -> int | None:
        """Do it, and return the exit code; None is 0. A `SlimeError` is printed as one line with exit code 2.

        Args:
            args: `words` are those after the verb, `keys` those of them that set keys; and what `add_arguments` adds.
        """


@dataclass(frozen=True)
class VerbFactory:
    """Names a verb's module, which is imported when the verb is called, completed, or asked for its `--help`."""

    help: str  # what it does, in one line of `slime --help`
    module: str  # dotted name of a module with the functions of `Verb`

    def __call__(self) -> Verb:
        return cast(Verb, importlib.import_module(self.module))
