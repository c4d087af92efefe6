"""The buffer policy `staleness`: order, age and what becomes of old groups."""

from __future__ import annotations

import copy

import pytest

from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.plugins import load
from slime.segments import Segment, WeightSpan
from slime.types import Group, Prompt, Sample, Status, Verdict
from slime_testing.buffers import check_buffer


def group(name: str, *versions: int | None) -> Group:
    """A sample with a token of each version; None: one that is not begun."""
    prompt = Prompt(name, (), (1,))
    samples = []
    for index, version in enumerate(versions):
        sample = Sample(prompt, index)
        if version is not None:
            sample.segments.append(Segment(prompt.tokens, [7, 0], [-0.5, -0.1], [1, 1], [WeightSpan(version, 2)]))
            sample.status, sample.verdict = Status.COMPLETED, Verdict.of(1.0)
        samples.append(sample)
    return Group(prompt, samples)


def policy(**options):
    return load().buffers.create("staleness", **options)


@pytest.mark.parametrize("when_old", ["keep", "refresh", "drop"])
def test_it_keeps_the_contract(when_old: str) -> None:
    check_buffer("staleness", {"max_lag": 4, "when_old": when_old})
    check_buffer("staleness", {"max_lag": 4, "max_groups": 5})


def test_the_oldest_come_first() -> None:
    buffer = policy(max_lag=9)
    for name, version in [("a", 5), ("b", 3), ("c", None), ("d", 3), ("e", 4)]:
        assert buffer.put(group(name, 6, version), 6).keep
    assert [each.id for each in buffer.take(3, 7)] == ["b", "d", "e"]
    assert [each.id for each in buffer.take(3, 7)] == ["a", "c"]


def test_old_samples_are_begun_again_and_others_stay() -> None:
    buffer = policy(max_lag=1, when_old="refresh")
    given = group("a", 3, 6, None)
    buffer.put(given, 6)
    whole = copy.deepcopy(given.samples[1])
    [taken] = buffer.take(1, 7)
    assert taken.samples == [Sample(given.prompt, 0), whole, Sample(given.prompt, 2)]


def test_at_the_bound_nothing_is_old() -> None:
    for name in ("refresh", "drop"):
        buffer = policy(max_lag=1, when_old=name)
        given = group("a", 6, 6)
        buffer.put(given, 6)
        assert buffer.take(1, 7) == [copy.deepcopy(given)]
        assert not buffer.dropped


def test_old_groups_are_dropped_and_counted_once() -> None:
    buffer = policy(max_lag=1, when_old="drop")
    for name, version in [("a", 3), ("b", 6), ("c", 5)]:
        buffer.put(group(name, 6, version), 6)
    assert [each.id for each in buffer.take(0, 7)] == []
    assert buffer.dropped == {"too_old": 2}
    assert [each.id for each in buffer.take(9, 7)] == ["b"]
    assert len(buffer) == 0


def test_what_is_kept_goes_on_however_old() -> None:
    buffer = policy(max_lag=0, when_old="keep")
    given = group("a", 1)
    buffer.put(given, 6)
    assert buffer.take(1, 9) == [copy.deepcopy(given)]


def test_a_run_names_it() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.over_sampling=2", "buffer=staleness"]
    cfg = compose([*words, "buffer.options.max_lag=2", "buffer.options.when_old=drop"])
    buffer = policy(**cfg.buffer.options)
    buffer.put(group("a", 3), 5)
    assert (buffer.take(1, 6), buffer.dropped) == ([], {"too_old": 1})
    with pytest.raises(SlimeError, match="when_old"):
        compose([*words, "buffer.options.when_old=forget"])
