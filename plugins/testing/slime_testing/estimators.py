"""The contract of an estimator, for a plugin's own tests.

from slime_testing.estimators import check_estimator

def test_contract() -> None:
    check_estimator("median", options={"scale": 0.5})
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slime import plugins
from slime.algo.stages import HasIdleOptions, estimator_of, keys_with_readers
from slime.compose.objective import estimator_problems
from slime.config.schema import AlgoConfig, TrainConfig
from slime.estimator import Attempt, Estimator
from slime_testing.plugins import UNKNOWN_OPTION, check_light

LEARNT = ((1.0, 3), (0.0, 5), (0.25, 1), (1.0, 8)), ((-2.0, 4), (0.5, 4)), ((0.0, 2), (0.0, 7), (0.0, 1))
"""Groups of (reward, loss tokens)."""
EQUAL = ((1.0, 3), (1.0, 2)), ((1.0, 1), (1.0, 40))
HUGE = ((1e30, 1), (-1e30, 2), (0.0, 3)), ((1e-30, 1), (0.0, 1))
ROUNDING: Mapping[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
"""A sum in another order, not another number."""
ASKED = """
from slime.algo.stages import estimator_of
from slime.config.schema import AlgoConfig
estimator_of(AlgoConfig(advantage={name!r}, advantage_options={options!r})).min_samples
"""
"""What `slime plan` asks of it, which is to be light."""

Groups = Sequence[Sequence[Attempt]]


def check_estimator(name: str, **algo: Any) -> None:
    """Assert that estimator `name` is well installed, and that what it gives can be trained on.

    Each attempt gets one finite number, or one for each loss token; the same again, and whatever the order of groups
    and of the attempts in a group. In a group, of two attempts of equal length the one with the higher reward has no
    lower advantage, and rewards that differ teach something.

    Args:
        algo: keys of `algo`, for instance `normalize_std=False`; `options` are `algo.advantage_options`.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: no estimator of that name is installed, or its options are wrong.
    """
    installed, options = plugins.load(), algo.pop("options", {})
    check_light(installed.estimators.get(name), ASKED.format(name=name, options=options))
    cfg = AlgoConfig(advantage=name, advantage_options=options, **algo)
    for problem in estimator_problems(cfg, installed):
        raise problem
    unknown = AlgoConfig(advantage=name, advantage_options={**options, UNKNOWN_OPTION: None}, **algo)
    assert any(estimator_problems(unknown, installed)), f"estimator '{name}' takes options it does not know"
    estimator = estimator_of(cfg)
    check_idle_options(f"estimator/{name}", estimator)
    assert estimator.min_samples >= 1, f"estimator '{name}' needs at least one sample, not {estimator.min_samples}"
    for rows in (LEARNT, EQUAL, HUGE):
        _check_step(name, estimator, [[Attempt(*row) for row in group] for group in rows])
    if estimator.min_samples == 1:
        _check_step(name, estimator, [[Attempt(1.0, 3)], [Attempt(0.0, 5)]])
    learnt = _spread(name, estimator, [[Attempt(*row) for row in group] for group in LEARNT])
    assert any(values.any() for of_group in learnt for values in of_group), f"estimator '{name}' teaches nothing"


def check_idle_options(chosen: str, made: Any) -> None:
    """Assert that what an objective or estimator calls idle are options of its own.

    Args:
        chosen: `algo/<name>` or `estimator/<name>`.
    """
    schema = plugins.load().schemas.get(chosen)
    if schema is None or not isinstance(made, HasIdleOptions):
        return
    options = {field.name for field in dataclasses.fields(schema)} - {*keys_with_readers()}
    for steps in (1, 4):
        unknown = made.idle_options(TrainConfig(steps_per_rollout=steps)).keys() - options
        assert not unknown, f"{chosen} calls '{min(unknown)}' idle, which is no option of its own"


def _check_step(name: str, estimator: Estimator, groups: Groups) -> None:
    before = copy.deepcopy(groups)
    once = _spread(name, estimator, groups)
    assert groups == before, f"estimator '{name}' changed the groups"
    _require_equal(name, once, _spread(name, estimator, groups), "the second time")
    turned = _spread(name, estimator, [group[::-1] for group in groups[::-1]])
    _require_equal(name, once, [of_group[::-1] for of_group in turned[::-1]], "in another order")
    for group, of_group in zip(groups, once, strict=True):
        _require_order(name, group, of_group)


def _spread(name: str, estimator: Estimator, groups: Groups) -> list[list[np.ndarray]]:
    """[num_loss_tokens] by attempt."""
    found = estimator.advantages(groups)
    sizes = [len(group) for group in groups], [len(of_group) for of_group in found]
    assert sizes[0] == sizes[1], f"estimator '{name}' gave {sizes[1]} advantages to groups of {sizes[0]}"
    spread = []
    for group, of_group in zip(groups, found, strict=True):
        spread.append([_of_tokens(name, *pair) for pair in zip(group, of_group, strict=True)])
    return spread


def _of_tokens(name: str, attempt: Attempt, advantage: Any) -> np.ndarray:
    values, count = np.asarray(advantage, np.float64), attempt.num_loss_tokens
    assert values.shape in ((), (count,)), f"estimator '{name}': neither one number nor {count}: {advantage!r}"
    assert np.isfinite(values).all(), f"estimator '{name}' gave {advantage!r} for reward {attempt.reward:g}"
    return np.broadcast_to(values, count)


def _require_equal(name: str, wanted: list[list[np.ndarray]], got: list[list[np.ndarray]], when: str) -> None:
    for one, other in zip(wanted, got, strict=True):
        same = all(np.allclose(a, b, **ROUNDING) for a, b in zip(one, other, strict=True))
        assert same, f"estimator '{name}' gives other advantages {when}: {one}, then {other}"


def _require_order(name: str, group: Sequence[Attempt], of_group: Sequence[np.ndarray]) -> None:
    for number, low in enumerate(group):
        for high, values in zip(group, of_group, strict=True):
            if low.num_loss_tokens == high.num_loss_tokens and low.reward < high.reward:
                what = f"reward {high.reward:g} has a lower advantage than {low.reward:g}"
                assert (values >= of_group[number]).all(), f"estimator '{name}': {what} in its group"
