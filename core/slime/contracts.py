"""What a plugin implements: small Protocols, without torch.

Three have files of their own: a model family (`slime.models.bridge`), an objective (`slime.objective`) and an estimator
of advantages (`slime.estimator`).
"""

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
"""What is kept of a step: `rollout/samples`, and `eval/samples` where the held-out prompts were scored."""


@runtime_checkable
class RewardModel(Protocol):
    """Scores one sample. Runs in a worker process that may be killed at its time or memory limit."""

    def score(self, sample: Sample) -> Verdict:
        """Judge `sample.response` against `sample.prompt.label`. May raise: that becomes an ERROR verdict.

        `sample` comes without log-probs, loss mask and weight spans. What `score` starts is killed when it returns.
        """


@runtime_checkable
class GroupReward(Protocol):
    """Judges the samples of a prompt together, as one that ranks or compares them does.

    It has this method in the place of `RewardModel.score`, and all else is as there. Time and memory are limited for
    the group.
    """

    def score_group(self, samples: Sequence[Sample]) -> Sequence[Verdict]:
        """A verdict for each, in their order.

        Args:
            samples: all samples of one prompt that have a response, one at least. Those that have a verdict already, of
                their program, keep it.
        """


Reward = RewardModel | GroupReward


class Responder(Protocol):
    """What a program asks the model through: single responses, or conversations. It keeps the tokens, so that those
    trained on are those sampled."""

    async def respond(self) -> Turn:
        """Sample a response to the task's prompt, to its end. One at a time.

        Asked again, it samples another one, and the sample is that one: the one before is neither trained on nor
        judged. Where the engines are told to abort, this raises what no `except Exception` catches, and a later step
        runs the program again; then a first response goes on where it stopped.
        """

    def conversation(self, messages: Sequence[Message] | None = None, tools: Sequence[Any] = ()) -> Conversation:
        """A conversation of several turns. All those of an attempt are trained on, each as a sequence of its own.

        Args:
            messages: what it begins with; None: the prompt's.
            tools: JSON schemas of functions, as in the OpenAI API, which the chat template shows the model.
        """

    def rendered(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = False) -> str:
        """What the chat template writes for these messages: it shows how the model writes a call of a tool. `prompt`
        opens the model's turn behind them."""

    def note(self, name: str, value: float) -> None:
        """Keep a number of this attempt. `samples/` has it, and the metric `rollout/<name>_mean` is its mean over the
        attempts of a step."""


@runtime_checkable
class Program(Protocol):
    """Makes the attempts: says what the model is asked for one sample.

    Runs in a worker process with time and memory limits, one attempt at a time. One with the attribute
    `in_driver = True` runs in the driver's event loop beside thousands of others: it awaits and never blocks, and a
    crash of its own is one of the run.
    """

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        """Make one attempt, with one response at least. None: the run's reward judges it.

        May raise: that becomes an ERROR verdict, and the sample is left out of its group's statistics.
        """


@runtime_checkable
class SampleFilter(Protocol):
    """Keeps or drops a rewarded group before training.

    A method `shape(group)` beside `decide`, called before it, says what is added to the reward of each sample: finite
    numbers, in the order of `group.samples`.
    """

    def decide(self, group: Group) -> Decision:
        """Keep, or drop with a reason."""


@runtime_checkable
class Stateful(Protocol):
    """What a checkpoint keeps of the driver: a source of rows, the buffer, or an estimator."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of it for the checkpoint: JSON's values, or the others that `slime.driver_state` holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly what `state` says, whatever was held before."""


@runtime_checkable
class BufferPolicy(Stateful, Protocol):
    """Holds groups between steps: what is stored, for how long, and in which order it comes out.

    A step stores what it began and did not train on: groups aborted when it had enough, and finished ones that came
    too late. The next step asks for these before it takes new prompts. `slime.sampling.buffer` has functions that turn
    groups into plain values and back.
    """

    def put(self, group: Group, version: int) -> Decision:
        """Store a group aborted while the engines served weight `version`; or refuse it with a reason, which becomes
        the metric `buffer/drop/<reason>`. The group is not to be changed."""

    def take(self, count: int, version: int) -> list[Group]:
        """At most `count` groups to continue under weight `version`, removed from it. New prompts make up for fewer."""

    def __len__(self) -> int:
        """Groups held, the metric `rollout/buffered_groups`."""


@runtime_checkable
class Tracker(Protocol):
    """Shows a run's metrics somewhere else than in metrics.jsonl. Lives in the driver, and is called between steps."""

    def start(self, run: TrackedRun) -> None:
        """Connect, before anything expensive starts. Raising stops the run: nobody wants to miss its metrics.

        A run that continues starts again with the same `run.folder`, where the tracker finds what it left there.
        """

    def resume(self, stage: str, step: int) -> None:
        """The run continues after this step. Later ones that were logged run again, and come again."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """All metrics of a step, which may be not finite; `time` is in Unix seconds.

        Raising is told in a line, once, and the run goes on: the same row comes again with a later one.
        """

    def finish(self, status: RunStatus) -> None:
        """The last call; nobody waits for the devices any more."""


@runtime_checkable
class SampleTracker(Tracker, Protocol):
    """A tracker that shows what the model answered, too."""

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """The same that `samples/` keeps, after `log` of the step. `slime_observers.samples.rows` has functions that
        choose among the rows, and that make a table of them.

        Raising is told in a line, once, and these samples do not come again.
        """


@dataclass(frozen=True)
class Cause:
    """Of a difference between engine and trainer.

    Attributes:
        label: in the alarm's line, in front of its nats a token.
        todo: what to do where it is the largest; `{settings}` stands for the engines' settings that matter.
    """

    label: str
    todo: str


@runtime_checkable
class Explanation(Protocol):
    """Says why engine and trainer differ on the same tokens, when `observe.logprob_alarm` rings. Every installed one is
    asked; the run ends with what they say."""

    @property
    def causes(self) -> Mapping[str, Cause]:
        """By metric, `gap/<name>`, in the order of the alarm's line."""

    def measure(self, trainer: Any, micro_batches: Sequence[Any]) -> Mapping[str, float]:
        """What each cause costs, in nats a token, and further metrics `gap/<name>`; empty for a run that it
        does not know.

        Called on all ranks alike, before the optimizer step. Afterwards the weights must be bit for bit the same.

        Args:
            trainer: this rank's `slime_megatron.train.trainer.Trainer`.
            micro_batches: of the first optimizer step, `slime_megatron.train.local_batch.LocalMicroBatch`.
        """


@runtime_checkable
class Verb(Protocol):
    """What `slime <name> ...` does: a module with these two functions."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Say what it takes: `parser.description`, arguments and flags as in `argparse`, and `parser.add_keys()` if it
        takes the keys of a run. Must be quick: completion and `--help` call it, too."""

    def run(self, args: Namespace) -> int | None:
        """Do it, and return the exit code; None is 0.

        An error that the user can cause is a `SlimeError`, which is printed as one line with exit code 2.

        Args:
            args: `words` are those after the verb, `keys` those of them that set keys; and what `add_arguments` adds.
        """


@dataclass(frozen=True)
class VerbFactory:
    """Names a verb's module, which is imported when the verb is called, completed, or asked for its `--help`.

    Attributes:
        help: what it does, in one line of `slime --help`.
        module: dotted name of a module with the functions of `Verb`.
    """

    help: str
    module: str

    def __call__(self) -> Verb:
        """The module, imported."""
        return cast(Verb, importlib.import_module(self.module))
