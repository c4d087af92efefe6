"""Rules about the chosen objective and estimator: everything else asks them, so they come first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slime.algo.stages import estimator_of, made_by, objective_of, shared_with
from slime.compose.options import check_options
from slime.config.schema import AlgoConfig
from slime.errors import SlimeError, did_you_mean
from slime.objective import Source, TrainsOn
from slime.plugins import Plugins
from slime.types import ADVANTAGES, IS_CURRENT, PREFERENCE, ROLLOUT_LOGPROBS

COLUMNS = {TrainsOn.rollouts: (ADVANTAGES, ROLLOUT_LOGPROBS, IS_CURRENT), TrainsOn.demonstrations: ()}
COLUMNS |= {TrainsOn.pairs: (PREFERENCE,)}
"""Columns that come with the samples of a run."""


CHOSEN_BY = {"algo": ("name", "options"), "estimator": ("advantage", "advantage_options")}
"""Kind -> the keys of `algo` that have the chosen one's name and its options."""


def objective_problems(algo: AlgoConfig, plugins: Plugins) -> Iterator[SlimeError]:
    """Whether it is installed, takes its options, and reads columns that somebody makes."""
    if faults := list(_faults(algo, plugins, "algo", objective_of)):
        yield from faults
        return
    objective = objective_of(algo)
    told = plugins.registries["recording"].names() if objective.trains_on is TrainsOn.rollouts else ()
    known = (*COLUMNS[objective.trains_on], *made_by(objective), *told)
    for column in objective.needs:
        if column.source is Source.rollout and column.name not in known and not column.optional:
            what = f"algo '{algo.name}' reads column '{column.name}', which {objective.trains_on.value} do not have"
            todo = did_you_mean(column.name, known) if known else "They have none."
            yield SlimeError(what, where="algo.name", todo=todo)


def estimator_problems(algo: AlgoConfig, plugins: Plugins) -> Iterator[SlimeError]:
    """Whether it is installed and takes its options."""
    return _faults(algo, plugins, "estimator", estimator_of)


def _faults(
    algo: AlgoConfig, plugins: Plugins, kind: str, make: Callable[[AlgoConfig], object]
) -> Iterator[SlimeError]:
    """Whether what `algo` chooses is installed, takes its options, and can be made with them."""
    key, home = (f"algo.{each}" for each in CHOSEN_BY[kind])
    name, options = (getattr(algo, each) for each in CHOSEN_BY[kind])
    try:
        item = plugins.registries[kind].get(name)
    except SlimeError as problem:
        yield SlimeError(f"no {'algorithm' if kind == 'algo' else kind} '{name}'", where=key, todo=problem.todo)
        return
    shared = shared_with(algo, item)
    if both := sorted(shared.keys() & options.keys()):
        yield SlimeError("is a key of algo itself", where=f"{home}.{both[0]}", todo=f"Set algo.{both[0]} instead.")
        return
    schema = plugins.schemas.get(f"{item.kind}/{item.name}")
    if faults := list(check_options(item, options, schema, home, shared)):
        yield from faults
        return
    try:
        make(algo)
    except SlimeError as problem:
        yield problem
