"""Filters, buffers and estimators that raise, exit, hang or answer nonsense: the run ends in a line that names them."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from slime.algo.advantages import GroupMean
from slime.config.schema import AlgoConfig, FilterConfig
from slime.errors import SlimeError
from slime.plugins import Contribution, Registry
from slime.sampling.guarded import FilterChain, GuardedBuffer, GuardedEstimator, GuardedFilter
from slime.types import Decision, Group, Prompt, Sample
from slime_testing.plugins import group
from tests.advantages import guarded

GROUP = Group(Prompt("0/0", (), (1,)), [])


class Scripted:
    """A filter, a buffer and an estimator in one, whose methods do `act`."""

    def __init__(self, act: Callable[[], Any] = lambda: None) -> None:
        self._act = act

    def decide(self, group: Group) -> Any:
        return self._act()

    def put(self, group: Group, version: int) -> Any:
        return self._act()

    def take(self, count: int, version: int) -> Any:
        return self._act()

    def advantages(self, groups: Any) -> Any:
        return self._act()

    def __len__(self) -> int:
        return len(self._act())

    def state_dict(self) -> Any:
        return self._act()

    def load_state_dict(self, state: Any) -> None:
        self._act()


def made(kind: str, act: Callable[[], Any]) -> Any:
    registry: Registry[Any] = Registry(kind, [Contribution(kind, "odd", Scripted, "slime-odd", "1.2")])
    options = {"act": act}
    if kind == "filter":
        return GuardedFilter(registry, "odd", options, patience_s=0.2)
    if kind == "estimator":
        algo = AlgoConfig(advantage="odd", advantage_options=options)
        return GuardedEstimator(registry, algo, patience_s=0.2)
    return GuardedBuffer(registry, "odd", options, patience_s=0.2)


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "decide": ("filter", lambda made: made.decide(GROUP)),
    "put": ("buffer", lambda made: made.put(GROUP, 0)),
    "take": ("buffer", lambda made: made.take(1, 0)),
    "advantages": ("estimator", lambda made: made.advantages([])),
    "__len__": ("buffer", len),
    "state_dict": ("buffer", lambda made: made.state_dict()),
    "load_state_dict": ("buffer", lambda made: made.load_state_dict({})),
}
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: 1 / 0, "raised ZeroDivisionError: division by zero (test_guarded.py:"),
    "exits": (sys.exit, "raised SystemExit"),
    "hangs": (lambda: time.sleep(1000), "did not return within 0.2 s (test_guarded.py:"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("method", CALLS)
def test_the_line_names_plugin_and_method(method: str, bad: str) -> None:
    kind, call = CALLS[method]
    act, said = BAD[bad]
    with pytest.raises(SlimeError) as caught:
        call(made(kind, act))
    assert str(caught.value).startswith(f"{kind} 'odd' of slime-odd 1.2: {method} {said}")
    key = "algo.advantage" if kind == "estimator" else kind
    assert f"choose another with {key}=<name>" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("decide", None),
        ("decide", True),
        ("decide", Decision(keep=False, reason="Two words")),
        ("put", "keep"),
        ("take", None),
        ("take", [GROUP, GROUP]),
        ("take", [Sample(GROUP.prompt, 0)]),
        ("state_dict", []),
    ],
)
def test_nonsense_is_said(method: str, answer: Any) -> None:
    kind, call = CALLS[method]
    with pytest.raises(SlimeError, match=f"{kind} 'odd' of slime-odd 1.2: {method} gave "):
        call(made(kind, lambda: answer))


def test_what_keeps_the_contract_passes() -> None:
    decision = Decision(keep=False, reason="too_old")
    assert made("filter", lambda: decision).decide(GROUP) is decision
    assert made("buffer", lambda: [GROUP]).take(3, 0) == [GROUP]
    assert len(made("buffer", lambda: [GROUP])) == 1


def test_what_a_buffer_drops_while_it_holds_it_is_counted_by_reason() -> None:
    def holding(counts: Any) -> Any:
        buffer = made("buffer", lambda: None)
        buffer._made.dropped = counts
        return buffer

    assert holding(Counter(too_old=2)).dropped == {"too_old": 2}
    assert not made("buffer", lambda: None).dropped
    for counts in (Counter({"Two words": 1}), ["too_old"]):
        with pytest.raises(SlimeError, match=r"buffer 'odd' of slime-odd 1\.2: dropped is "):
            _ = holding(counts).dropped


def test_a_factory_that_raises_is_named() -> None:
    registry: Registry[Any] = Registry("filter", [Contribution("filter", "odd", Scripted, "slime-odd", "1.2")])
    with pytest.raises(SlimeError, match=r"filter .odd. of slime-odd 1\.2: its factory raised TypeError"):
        GuardedFilter(registry, "odd", {"wrong": 1}, patience_s=1)


def test_the_plugin_s_own_line_comes_through() -> None:
    def refuse() -> None:
        raise SlimeError("no", todo="Do it.")

    with pytest.raises(SlimeError, match=r"^no\. Do it\.$"):
        made("filter", refuse).decide(GROUP)


class Adding:
    """A filter that adds `amount`, and drops groups whose best reward is below `least`."""

    def __init__(self, amount: Any, least: float) -> None:
        self._amount, self._least = amount, least

    def shape(self, group: Group) -> Any:
        return [self._amount] * len(group.samples) if isinstance(self._amount, float) else self._amount

    def decide(self, group: Group) -> Decision:
        return Decision(keep=max(group.rewards) >= self._least, reason="low")


def chain(*filters: tuple[Any, float]) -> FilterChain:
    """Filters 0, 1, ... in this order, the first of them by `name`."""

    def factory(number: int) -> Callable[[], Adding]:
        return lambda: Adding(*filters[number])

    names = [str(number) for number in range(len(filters))]
    brought = [Contribution("filter", name, factory(int(name)), "slime-odd", "1.2") for name in names]
    return FilterChain(Registry("filter", brought), FilterConfig("0", {}, {name: {} for name in names[1:]}), 1.0)


def test_each_filter_sees_what_those_before_it_added() -> None:
    given = group([1.0, 0.0, None])
    assert chain((0.5, 1.5), (0.25, 1.75)).decide(given) == Decision(keep=True)
    assert (given.rewards, given.raw_rewards) == ([1.75, 0.75], [1.0, 0.0])
    assert chain((0.5, 0), (0.25, 1.8)).decide(given) == Decision(keep=False, reason="low")


def test_a_group_that_comes_a_second_time_is_shaped_once() -> None:
    given, filters = group([1.0, 0.0]), chain((0.5, 0))
    for _ in range(2):
        filters.decide(given)
    assert given.rewards == [1.5, 0.5]


def test_the_first_filter_that_drops_decides_and_no_further_one_is_asked() -> None:
    given = group([1.0, 0.0])
    assert chain((0.5, 2.0), ("never asked", 0)).decide(given) == Decision(keep=False, reason="low")


@pytest.mark.parametrize("answer", [[1.0], [1.0, float("nan")], "ab", None, [1.0, "2"]])
def test_a_shape_that_is_no_list_of_numbers_ends_the_run(answer: Any) -> None:
    with pytest.raises(SlimeError, match=r"^filter '0' of slime-odd 1.2: shape gave .*, not 2 finite numbers"):
        chain((answer, 0)).decide(group([1.0, 0.0]))


def test_the_state_of_an_estimator_is_its_own() -> None:
    """Another one that is chosen when the run continues begins without; one that keeps nothing has none."""
    assert guarded(GroupMean(normalize_std=True)).state_dict() == {}
    keeping, resumed = made("estimator", lambda: {"means": [0.5]}), made("estimator", lambda: 1 / 0)
    assert keeping.state_dict() == {"odd": {"means": [0.5]}}
    resumed.load_state_dict({"other": {"means": [0.5]}})
    guarded(GroupMean(normalize_std=True)).load_state_dict({"odd": {}})
    with pytest.raises(SlimeError, match=r"estimator 'odd' of slime-odd 1\.2: load_state_dict raised"):
        resumed.load_state_dict({"odd": {"means": [0.5]}})
