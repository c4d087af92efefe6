"""Rules about the chosen objective and estimator: everything else asks them, so they come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime.algo.stages import estimator_of, made_by, objective_of, shared_with
from slime.compose.options import check_options
from slime.config.schema import AlgoConfig
from slime.errors import SlimeError, did_you_mean
from slime.objective import Source, TrainsOn
from slime.plugins import Plugins
from slime.registry import Contribution
from slime.types import ADVANTAGES, IS_CURRENT, PREFERENCE, ROLLOUT_LOGPROBS

COLUMNS = {TrainsOn.rollouts: (ADVANTAGES, ROLLOUT_LOGPROBS, IS_CURRENT), TrainsOn.demonstrations: ()}
COLUMNS |= {TrainsOn.pairs: (PREFERENCE,)}
"""Those that come with the samples of a run."""


def objective_problems(algo: AlgoConfig, plugins: Plugins) -> Iterator[SlimeError]:
    """Whether it is installed, takes its options, and reads columns that somebody makes."""
    try:
        item = plugins.objectives.get(algo.name)
    except SlimeError as problem:
        yield SlimeError(f"no algorithm '{algo.name}'", where="algo.name", todo=problem.todo)
        return
    faults = list(_option_problems(algo, item, algo.options, "algo.options", plugins))
    yield from faults
    if faults:
        return
    try:
        objective = objective_of(algo)
    except SlimeError as problem:
        yield problem
        return
    known = (*COLUMNS[objective.trains_on], *made_by(objective))
    for column in objective.needs:
        if column.source is Source.rollout and column.name not in known and not column.optional:
            what = f"algo '{algo.name}' reads column '{column.name}', which {objective.trains_on.value} do not have"
            todo = did_you_mean(column.name, known) if known else "They have none."
            yield SlimeError(what, where="algo.name", todo=todo)


def estimator_problems(algo: AlgoConfig, plugins: Plugins) -> Iterator[SlimeError]:
    """Whether it is installed and takes its options."""
    try:
        item = plugins.estimators.get(algo.advantage)
    except SlimeError as problem:
        yield SlimeError(f"no estimator '{algo.advantage}'", where="algo.advantage", todo=problem.todo)
        return
    faults = list(_option_problems(algo, item, algo.advantage_options, "algo.advantage_options", plugins))
    yield from faults
    if faults:
        return
    try:
        estimator_of(algo)
    except SlimeError as problem:
        yield problem


def _option_problems(
    algo: AlgoConfig, item: Contribution, options: Mapping[str, Any], home: str, plugins: Plugins
) -> Iterator[SlimeError]:
    shared = shared_with(algo, item)
    if both := sorted(shared.keys() & options.keys()):
        yield SlimeError("is a key of algo itself", where=f"{home}.{both[0]}", todo=f"Set algo.{both[0]} instead.")
        return
    yield from check_options(item, options, plugins.schemas.get(f"{item.kind}/{item.name}"), home, shared)
