"""The stages of a run, in order, with the objective and the estimator that `algo` chooses. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slime import plugins
from slime.config.schema import AlgoConfig, SlimeConfig, TrainConfig
from slime.errors import SlimeError
from slime.estimator import CriticEstimator, Estimator
from slime.models.bridge import HasModel
from slime.objective import LossInputs, Objective, Source, TrainsOn
from slime.registry import Contribution
from slime.types import RL, SFT, TrainSample

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

SHARED_KEYS = ("name", "options", "advantage", "advantage_options", "loss_mean", "mask_truncated", "critic", "teacher")
"""Keys of `algo` that act whatever is chosen. The others are keywords of the objectives and estimators that know
them."""
ONE_STEP = "without train.steps_per_rollout or train.epochs_per_rollout above 1"
"""Why a comparison with the weights before the first optimizer step of a rollout does nothing: they are the same."""


@runtime_checkable
class MakesColumns(Protocol):
    """An objective that makes columns itself, with the source `rollout`, before advantages are known."""

    @property
    def makes(self) -> Collection[str]:
        """Names of the columns."""

    def make_columns(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        """Samples with the columns (`TrainSample.with_columns`), finite wherever the loss mask is not 0. Called in the
        driver, in a thread, before samples are packed."""


def of_data(objective: Objective) -> list[str]:
    """Names of the columns that an objective reads from the data set."""
    return [column.name for column in objective.needs if column.source is Source.data]


def with_columns(objective: Objective, samples: Sequence[TrainSample]) -> list[TrainSample]:
    """Samples with the columns that the objective reads from the data set, and those that it makes itself."""
    if names := of_data(objective):
        import numpy as np

        def column(sample: TrainSample, name: str) -> np.ndarray:
            return np.broadcast_to(np.asarray(sample.row[name], np.float32), sample.num_response_tokens)

        samples = [each.with_columns(**{name: column(each, name) for name in names}) for each in samples]
    if isinstance(objective, MakesColumns) and objective.makes:
        return objective.make_columns(samples)
    return [*samples]


@runtime_checkable
class HasIdleOptions(Protocol):
    """An objective or estimator whose own options (`algo.options`, `algo.advantage_options`) may act on nothing."""

    def idle_options(self, train: TrainConfig) -> Mapping[str, str]:
        """Name -> why the option does nothing in a run with this section `train`: "without ..." or "with ...". To set
        one is refused in these words. No torch."""


def idle_options(algo: AlgoConfig, train: TrainConfig) -> dict[str, str]:
    """Key -> why it does nothing, of the options of the chosen objective and estimator."""
    chosen = {"algo.options": objective_of(algo), "algo.advantage_options": estimator_of(algo)}
    declaring = {home: each for home, each in chosen.items() if isinstance(each, HasIdleOptions)}
    return {f"{home}.{name}": why for home, each in declaring.items() for name, why in each.idle_options(train).items()}


def made_by(objective: Objective) -> Collection[str]:
    """Names of the columns that `with_columns` adds."""
    return (*of_data(objective), *(objective.makes if isinstance(objective, MakesColumns) else ()))


@runtime_checkable
class HasStepSums(Protocol):
    """An objective whose loss of a token depends on sums over all tokens of its optimizer step."""

    @property
    def early(self) -> Collection[Source]:
        """Sources of the columns that `step_sums` reads: they take a pass also where the model computes them anyway."""

    def step_sums(self, inputs: LossInputs) -> Mapping[str, Tensor]:
        """Scalars of a micro-batch without gradient, of the same names in all. Called for every one before the first
        forward pass, with the columns of the samples and of earlier passes. `loss` finds the sums over the
        micro-batches of all ranks in `LossInputs.step_sums`."""


@runtime_checkable
class PenalisesRewards(Protocol):
    """An objective that takes something from rewards, before advantages are made of them: from the reward of each token
    where a critic learns, else the sum over its loss tokens from the reward of an attempt."""

    @property
    def penalised_by(self) -> Collection[str]:
        """Names of the columns that `penalties` reads, [t] each; empty: it takes nothing. A column of the policy takes
        a pass also where the model computes it anyway."""

    def penalties(self, columns: Mapping[str, Tensor]) -> Tensor:
        """[t] in units of the reward, from these columns, which are 0 where the loss mask is."""


@dataclass(frozen=True)
class Stage:
    """Steps of one kind, with one objective."""

    name: str  # `SFT` or `RL`
    objective: Objective
    num_steps: int  # of the stage, from its beginning
    optimizer_steps: int = 1  # that the samples of one step are split into
    epochs: int = 1  # how often a step trains on them
    algo: AlgoConfig | None = None  # chooses the estimator of a stage that reinforces

    @property
    def reinforces(self) -> bool:
        """Whether it trains on what engines generate."""
        return self.objective.trains_on is TrainsOn.rollouts

    @property
    def estimator(self) -> CriticEstimator | None:
        """The estimator of advantages, where a critic learns beside the policy."""
        found = estimator_of(self.algo) if self.algo else None
        return found if isinstance(found, CriticEstimator) else None

    @property
    def policy_steps(self) -> int:
        """Optimizer steps that the policy takes; a critic may learn alone before."""
        alone = self.algo.critic.only_steps if self.algo and self.estimator else 0
        return max(0, self.num_steps - alone) * self.optimizer_steps * self.epochs

    @property
    def penalised_by(self) -> Collection[str]:
        """See `PenalisesRewards`; empty: nothing is taken from rewards."""
        return self.objective.penalised_by if isinstance(self.objective, PenalisesRewards) else ()

    @property
    def penalises_attempts(self) -> bool:
        """Whether penalties are taken in the driver, as no critic learns of them."""
        return bool(self.penalised_by) and self.estimator is None

    @property
    def trains_on_pairs(self) -> bool:
        return self.objective.trains_on is TrainsOn.pairs

    def needs(self, source: Source) -> bool:
        """Whether the objective reads a column that `source` makes."""
        return any(column.source is source for column in self.objective.needs)

    def passes(self, optimizer_steps: int) -> list[Source]:
        """Models whose log-probs take a pass without gradient over the samples of a step, before its first optimizer
        step (of `optimizer_steps`, over all epochs). Before the only one the policy takes none, unless its log-probs
        are read earlier."""
        asked = {column.source for column in self.objective.needs if not column.optional}
        early = {*self.objective.early} if isinstance(self.objective, HasStepSums) else set()
        early |= {column.source for column in self.objective.needs if column.name in self.penalised_by}
        free = Source.policy if optimizer_steps == 1 and Source.policy not in early else Source.rollout
        scored = (Source.policy, Source.reference, Source.teacher)
        return [source for source in scored if source in asked and source is not free]

    @property
    def num_passes(self) -> int:
        return len(self.passes(self.optimizer_steps * self.epochs))


@dataclass(frozen=True)
class Stages:
    """The stages of a run, in order."""

    all: tuple[Stage, ...]

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.all)

    def __getitem__(self, name: str) -> Stage:
        return next(stage for stage in self.all if stage.name == name)

    @property
    def reinforces(self) -> bool:
        return any(stage.reinforces for stage in self.all)

    @property
    def have_critic(self) -> bool:
        return any(stage.estimator is not None for stage in self.all)

    @property
    def own_model(self) -> HasModel | None:
        """The objective of the only stage, where it has a model of its own."""
        [first, *_] = self.all
        return first.objective if isinstance(first.objective, HasModel) else None

    @property
    def num_passes(self) -> int:
        return max((stage.num_passes for stage in self.all), default=0)

    def needs(self, source: Source) -> bool:
        """Whether some stage's objective reads a column that `source` makes."""
        return any(stage.needs(source) for stage in self.all)


def reinforces(algo: AlgoConfig) -> bool:
    """Whether the chosen objective learns from rollouts."""
    return objective_of(algo).trains_on is TrainsOn.rollouts


def run_stages(cfg: SlimeConfig) -> Stages:
    """Demonstrations first, where `sft.num_steps` asks for them or the objective learns from nothing else; then
    reinforcement learning. Raises SlimeError if no objective of that name is installed, or it cannot be created."""
    chosen = objective_of(cfg.algo)
    reinforces = chosen.trains_on is TrainsOn.rollouts
    found = []
    if cfg.sft.num_steps or not reinforces:
        found.append(Stage(SFT, objective_of(AlgoConfig(name=SFT)) if reinforces else chosen, cfg.sft.num_steps))
    if reinforces:
        steps, epochs = cfg.train.steps_per_rollout, cfg.train.epochs_per_rollout
        found.append(Stage(RL, chosen, cfg.run.num_steps, steps, epochs, cfg.algo))
    return Stages(tuple(found))


def objective_of(algo: AlgoConfig) -> Objective:
    """The chosen objective, with its options and the keys of `algo` that it knows. Raises SlimeError if none of that
    name is installed, or its factory raised."""
    item = plugins.load().objectives.get(algo.name)
    made: Objective = _made(item, Objective, shared_with(algo, item), algo.options, "algo.options")
    return made


def estimator_of(algo: AlgoConfig) -> Estimator:
    """The chosen estimator; otherwise as `objective_of`."""
    item = plugins.load().estimators.get(algo.advantage)
    made: Estimator = _made(item, Estimator, shared_with(algo, item), algo.advantage_options, "algo.advantage_options")
    return made


def _made(item: Contribution, contract: Any, shared: Mapping[str, Any], options: Mapping[str, Any], home: str) -> Any:
    kind = "objective" if item.kind == "algo" else item.kind
    where, todo = f"{kind} '{item.name}' of {item.distribution} {item.version}", f"Correct {home}, or the plugin."
    try:
        made = item.factory(**shared, **options)
    except SlimeError:
        raise
    except Exception as error:
        what = f"its factory raised {type(error).__name__}: {error}"
        raise SlimeError(what, where=where, todo=todo) from error
    if not isinstance(made, contract):
        what = f"its factory made {made!r:.80}, which has not the methods of {contract.__module__}.{contract.__name__}"
        raise SlimeError(what, where=where, todo=todo)
    return made


def shared_with(algo: AlgoConfig, item: Contribution) -> Mapping[str, Any]:
    """Keys and values of `algo` that are keywords of a contribution, as its schema has fields of their names."""
    schema = plugins.load().schemas.get(f"{item.kind}/{item.name}")
    known = {field.name for field in dataclasses.fields(schema)} if schema else set()
    return {key: getattr(algo, key) for key in keys_with_readers() if key in known}


def keys_read(algo: AlgoConfig) -> set[str]:
    """Keys of `keys_with_readers` that the chosen objective or the chosen estimator takes."""
    installed = plugins.load()
    chosen = (installed.objectives.get(algo.name), installed.estimators.get(algo.advantage))
    return {key for item in chosen for key in shared_with(algo, item)}


def keys_with_readers() -> list[str]:
    """Keys of `algo` that belong to the objectives and estimators which know them."""
    return [field.name for field in dataclasses.fields(AlgoConfig) if field.name not in SHARED_KEYS]
