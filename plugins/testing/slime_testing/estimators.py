"""The contract of an estimator, for a plugin's own tests.

from slime_testing.estimators import check_estimator

def test_contract() -> None:
    check_estimator("median", options={"scale": 0.5})
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from slime import driver_state, plugins
from slime.algo.stages import HasIdleOptions, estimator_of, keys_with_readers
from slime.compose.objective import estimator_problems
from slime.config.schema import AlgoConfig, TrainConfig
from slime.contracts import Stateful
from slime.estimator import Attempt, Estimator
from slime.segments import Segment, WeightSpan
from slime.types import Prompt, Sample, Status, Verdict
from slime_testing.plugins import UNKNOWN_OPTION, check_light

PROMPT = Prompt("0/0", ({"role": "user", "content": "1+1="},), (4, 5), "2")
LEARNT = ((1.0, 3), (0.0, 5), (0.25, 1), (1.0, 8)), ((-2.0, 4), (0.5, 4)), ((0.0, 2), (0.0, 7), (0.0, 1))
"""Groups of (reward, loss tokens)."""
EQUAL = ((1.0, 3), (1.0, 2)), ((1.0, 1), (1.0, 40))
ALONE = ((1.0, 3),), ((0.0, 5),)
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
    lower advantage, and rewards that differ teach something. One that keeps something from step to step
    (`slime.contracts.Stateful`) goes on alike after a checkpoint.

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
    methods = {name for name in ("state_dict", "load_state_dict") if hasattr(estimator, name)}
    assert len(methods) != 1, (
        f"estimator '{name}' has {methods.pop()} alone: state_dict and load_state_dict go together"
    )
    keeps = isinstance(estimator, Stateful)
    make: Callable[[], Estimator] = partial(estimator_of, cfg) if keeps else lambda: estimator
    for rows in (LEARNT, EQUAL, HUGE, *([ALONE] if estimator.min_samples == 1 else [])):
        _check_step(name, make, step_of(rows))
    learnt = _spread(name, make(), step_of(LEARNT))
    assert any(values.any() for of_group in learnt for values in of_group), f"estimator '{name}' teaches nothing"
    if keeps:
        _check_state(name, make)


def attempt(
    reward: float, num_loss_tokens: int, segments: Sequence[int] = (), *, prompt: Prompt = PROMPT, **parts: float
) -> Attempt:
    """An attempt as a step has it, for tests of an estimator.

    Args:
        segments: as of `slime.estimator.Attempt`.
        parts: of the reward.
    """
    sizes = segments or (num_loss_tokens,)
    made = [Segment(prompt.tokens, [7] * n, [-0.5] * n, [1] * n, [WeightSpan(0, n)]) for n in sizes]
    sample = Sample(prompt, 0, made, Status.COMPLETED, verdict=Verdict.of(reward, **parts))
    return Attempt(reward, num_loss_tokens, sample, segments)


def step_of(rows: Sequence[Sequence[tuple[float, int]]]) -> list[list[Attempt]]:
    """A step of groups with these rewards and loss tokens, each of a prompt of its own."""
    prompts = [dataclasses.replace(PROMPT, id=f"0/{number}") for number in range(len(rows))]
    pairs = zip(rows, prompts, strict=True)
    return [[attempt(reward, count, prompt=prompt) for reward, count in group] for group, prompt in pairs]


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


def _check_step(name: str, make: Callable[[], Estimator], groups: Groups) -> None:
    before = copy.deepcopy(groups)
    once = _spread(name, make(), groups)
    assert groups == before, f"estimator '{name}' changed the groups"
    _require_equal(name, once, _spread(name, make(), groups), "the second time")
    turned = _spread(name, make(), [group[::-1] for group in groups[::-1]])
    _require_equal(name, once, [of_group[::-1] for of_group in turned[::-1]], "in another order")
    for group, of_group in zip(groups, once, strict=True):
        _require_order(name, group, of_group)


def _check_state(name: str, make: Callable[[], Any]) -> None:
    """Two steps, a checkpoint, and two steps more."""
    first, resumed = make(), make()
    for rows in (LEARNT, EQUAL):
        first.advantages(step_of(rows))
    state = first.state_dict()
    kept = driver_state.dumps(state)
    resumed.advantages(step_of(HUGE))
    resumed.load_state_dict(driver_state.loads(kept))
    for rows in (EQUAL, LEARNT):
        wanted, got = (_spread(name, each, step_of(rows)) for each in (first, resumed))
        same = all(map(np.array_equal, itertools.chain(*wanted), itertools.chain(*got)))
        assert same, f"estimator '{name}' gives other advantages after a checkpoint: {wanted}, then {got}"
    is_copy = driver_state.dumps(state) == kept
    assert is_copy, f"a state of estimator '{name}' changes with the next step: state_dict has to copy"


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
