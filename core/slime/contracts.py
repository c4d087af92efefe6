"""What a plugin implements, without torch. `slime.models.bridge` is for families, `slime.estimator` for estimators."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from argparse import Namespace

    from torch import Tensor

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
        """Judge `sample.response` against `sample.prompt.label`. May raise: that becomes an ERROR verdict. `sample`
        comes without log-probs, loss mask and weight spans. What `score` starts is killed when it returns."""


@runtime_checkable
class GroupReward(Protocol):
    """Judges the samples of a prompt together, as one that ranks or compares them does. It has this method in the place
    of `RewardModel.score`, and all else is as there; time and memory are limited for the group."""

    def score_group(self, samples: Sequence[Sample]) -> Sequence[Verdict]:
        """A verdict for each, in their order. They are all samples of one prompt that have a response, one at least.
        Those that have a verdict already, of their program, keep it."""


Reward = RewardModel | GroupReward


class Responder(Protocol):
    """What a program asks the model through: single responses, or conversations. It keeps the tokens, so that those
    trained on are those sampled."""

    async def respond(self) -> Turn:
        """Sample a response to the task's prompt, to its end. Asked again, it samples another one, and the sample is
        that one: the one before is neither trained on nor judged. One at a time. Where the engines are told to abort,
        this raises what no `except Exception` catches, and a later step runs the program again; then a first response
        goes on where it stopped."""

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
        """Keep a number of this attempt. `samples/` has it, and `rollout/<name>_mean` its mean over a step."""


@runtime_checkable
class Program(Protocol):
    """Makes the attempts: says what the model is asked for one sample. Runs in a worker process with time and memory
    limits, one attempt at a time. One with the attribute `in_driver = True` runs in the driver's event loop beside
    thousands of others: it awaits and never blocks, and a crash of its own is one of the run."""

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        """Make one attempt, with one response at least. None: the run's reward judges it. May raise: that becomes an
        ERROR verdict, and the sample is left out of its group's statistics."""


@runtime_checkable
class SampleFilter(Protocol):
    """Keeps or drops a rewarded group before training. A method `shape(group)` beside `decide`, called before it, says
    what is added to the reward of each sample: finite numbers, in the order of `group.samples`."""

    def decide(self, group: Group) -> Decision:
        """Keep, or drop with a reason."""


@runtime_checkable
class BufferPolicy(Protocol):
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

    def state_dict(self) -> dict[str, Any]:
        """A copy of the contents for the checkpoint: JSON's values, or the others that `slime.driver_state` holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly the groups of `state`, whatever was held before."""


@runtime_checkable
class Tracker(Protocol):
    """Shows a run's metrics somewhere else than in metrics.jsonl. Lives in the driver, and is called between steps."""

    def start(self, run: TrackedRun) -> None:
        """Connect, before anything expensive starts. Raising stops the run: nobody wants to miss its metrics. A run
        that continues starts again with the same `run.folder`, where the tracker finds what it left there."""

    def resume(self, stage: str, step: int) -> None:
        """The run continues after this step. Later ones that were logged run again, and come again."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """All metrics of a step, which may be not finite; `time` is in Unix seconds. Raising is told in a line, once,
        and the run goes on: the same row comes again with a later one."""

    def finish(self, status: RunStatus) -> None:
        """The last call; nobody waits for the devices any more."""


@runtime_checkable
class SampleTracker(Tracker, Protocol):
    """A tracker that shows what the model answered, too."""

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """The same that `samples/` keeps, after `log` of the step. `slime_plugin_samples.rows` has functions that
        choose among the rows, and that make a table. Raising is told in a line, once; they do not come again."""


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
        """What each cause costs, in nats a token, and further metrics `gap/<name>`; empty of an unknown run.

        Called on all ranks alike, before the optimizer step. Afterwards the weights must be bit for bit the same.

        Args:
            trainer: this rank's `slime_plugin_megatron.trainer.Trainer`.
            micro_batches: of the first optimizer step, `slime_plugin_megatron.local_batch.LocalMicroBatch`.
        """


@runtime_checkable
class Verb(Protocol):
    """What `slime <name> ...` does: a module with these two functions."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Say what it takes: `parser.description`, arguments and flags as in `argparse`, and `parser.add_keys()` if it
        takes the keys of a run. Must be quick: completion and `--help` call it, too."""

    def run(self, args: Namespace) -> int | None:
        """Do it, and return the exit code; None is 0. A `SlimeError` is printed as one line, with exit code 2.
        `args.words` are the words after the verb, `args.keys` those that set keys."""


@dataclass(frozen=True)
class VerbFactory:
    """Names a verb's `module`, which has the functions of `Verb` and is imported when the verb is called, completed, or
    asked for its `--help`. `help` says what it does, in one line of `slime --help`."""

    help: str
    module: str

    def __call__(self) -> Verb:
        """The module, imported."""
        return cast(Verb, importlib.import_module(self.module))


class TrainsOn(enum.Enum):
    """What an objective learns from."""

    rollouts = "rollouts"
    """Samples of the model that is trained, with their rewards: a reinforcement-learning stage."""
    demonstrations = "demonstrations"
    """Rows of `sft.path`: a supervised stage."""
    pairs = "pairs"
    """Rows of `sft.path` with two answers, which stand in one micro-batch (`slime.types.PREFERENCE`)."""


class Source(enum.Enum):
    """Who makes a column."""

    rollout = "rollout"
    """It comes with the samples (`slime.types.TrainSample.columns`)."""
    policy = "policy"
    """Log-probs of the model that is trained, under its weights before the first optimizer step of the samples."""
    reference = "reference"
    """Log-probs of the reference model, which is the one that the stage starts from."""
    teacher = "teacher"
    """Log-probs of the teacher (`algo.teacher`)."""
    critic = "critic"
    """What comes of a critic (`slime_plugin_megatron.critic.Critic.learn`), before its first optimizer step."""


@dataclass(frozen=True)
class Column:
    """Numbers for every token that an objective reads beside the model's scores.

    Attributes:
        name: in `LossInputs.columns`.
        optional: the objective does without it where samples lack it, or where it would cost a pass of its own. One of
            the policy costs none in the first optimizer step: then it is what the model computes anyway.
        width: how many for each, [t, width]; None: one, [t]. Of a reference or teacher, which then has no column [t],
            about the tokens that it holds most probable: their log-probs, or, with `ids`, which they are.
        ids: of tokens, those of a place all different. The model's log-probs of them: `LossInputs.logprobs_of`.
    """

    name: str
    source: Source = Source.rollout
    optional: bool = False
    width: int | None = None
    ids: bool = False


@dataclass(frozen=True)
class Metrics:
    """The names of the numbers that a loss returns, beside the loss.

    Attributes:
        means, token_sums, maxima: as in `LossTerms`.
        measured_on: of a token sum or a maximum, the token sum that counts the tokens it is about, if not all loss
            tokens. The sum becomes a mean over them; both are left out where there are none, and so are the counts.
    """

    means: Sequence[str]
    token_sums: Sequence[str] = ()
    maxima: Sequence[str] = ()
    measured_on: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LossInputs:
    """What a loss reads of a micro-batch. Shape letter: t tokens of this rank, each of which the model predicts.

    Attributes:
        loss_mask: [t] fp32, 1 where a token is trained on. Elsewhere scores and columns are 0, and no gradient flows.
        loss_weights: [t] fp32. The sum of weighted token losses over the micro-batches and ranks of an optimizer step
            is the mean that `algo.loss_mean` asks for, so no loss divides by a number of tokens or samples.
        columns: [t] or [t, width] fp32 by name, without gradient; ids int64.
        logprobs_of: [t, width] with gradient, by name of a column of ids, the model's log-probs of these tokens.
        sum_by_sequence: from [t] numbers to sums over each token's sequence, [t], with gradient; called alike by ranks
            with parts of it. sum_by_attempt: over both answers of a pair. step_sums: `slime.algo.stages.HasStepSums`.
    """

    loss_mask: Tensor
    loss_weights: Tensor
    columns: Mapping[str, Tensor]
    sum_by_sequence: Callable[[Tensor], Tensor]
    sum_by_attempt: Callable[[Tensor], Tensor] | None = None
    logprobs_of: Mapping[str, Tensor] = field(default_factory=dict)
    step_sums: Mapping[str, Tensor] = field(default_factory=dict)

    def weighted(self, values: Tensor) -> Tensor:
        """Of [t] token losses, this micro-batch's part of their mean."""
        return (values * self.loss_weights).sum()

    def count(self, values: Tensor) -> Tensor:
        """Of [t] numbers, their sum over the loss tokens."""
        return (values * self.loss_mask).sum()

    def mean_by_sequence(self, values: Tensor) -> Tensor:
        """Of [t] numbers, the mean over the loss tokens of each token's sequence, [t]; 0 where that has none."""
        return self.sum_by_sequence(values * self.loss_mask) / self.sum_by_sequence(self.loss_mask).clamp(min=1)


@dataclass(frozen=True)
class LossTerms:
    """What a micro-batch adds to the loss and to the metrics of an optimizer step: scalars by name.

    Attributes:
        loss: with gradient.
        means: sums of weighted values (`LossInputs.weighted`), which add up to means.
        token_sums: sums over loss tokens (`LossInputs.count`); the metric is their mean over the step's loss tokens.
        maxima: the metric is the largest of the step, and at least 0.
    """

    loss: Tensor
    means: Mapping[str, Tensor]
    token_sums: Mapping[str, Tensor] = field(default_factory=dict)
    maxima: Mapping[str, Tensor] = field(default_factory=dict)

    def detach(self) -> LossTerms:
        """The same numbers without the graph that led to them."""
        groups = (self.means, self.token_sums, self.maxima)
        return LossTerms(self.loss.detach(), *({name: x.detach() for name, x in group.items()} for group in groups))


@runtime_checkable
class Objective(Protocol):
    """What a model learns from a batch; knows nothing of packing, ranks and optimizer steps.

    `slime plan` creates it and asks all but `loss`, so nothing else may import torch.
    """

    @property
    def trains_on(self) -> TrainsOn:
        """What its samples are."""

    @property
    def needs(self) -> Sequence[Column]:
        """The columns that `loss` reads. Sources beside the rollout cost memory or passes: `slime plan` shows them."""

    def metrics(self, columns: Collection[str]) -> Metrics:
        """The numbers that `loss` returns where these columns are there. They must be exactly those."""

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        """Of one micro-batch, in sums: nothing is divided here.

        Args:
            scores: [2, t] log-probs of the tokens and entropies of their distributions, in nats, with gradient; both
                at the temperature that samples are drawn with. Of a critic [1, t]: values.
        """
