"""How many steps ahead groups begin, by hand: seconds of generation and of trainers that a script says."""

from __future__ import annotations

import pytest

from slime_filters.ahead.steps_ahead import NUM_STEPS, StepsAhead

MOST = 3


def numbers(generate_s: list[float], trainers_s: list[float], most: int = MOST) -> list[int]:
    """Of each step, how many steps ahead groups begin as its predecessor is published. Engines have room for all: a
    step's groups are complete `generate_s` after they began."""
    ahead, now, begun, found = StepsAhead(most), 0.0, dict[int, float](), []
    for version, (_, interval_s) in enumerate(zip(generate_s, trainers_s, strict=True)):
        found.append(ahead.begin(version, now))
        for step in range(version + 1, min(version + 1 + found[-1], len(generate_s)) + 1):
            begun.setdefault(step, now)
        ahead.ask(now)
        ended = begun[version + 1] + generate_s[version]
        now = max(now, ended)
        ahead.take(version + 1, ended, now)
        now += interval_s
    return found


@pytest.mark.parametrize(
    ("generate_s", "number"),
    [(1.0, 1), (9.9, 1), (10.0, 1), (10.2, 2), (20.0, 2), (20.2, 3), (30.0, 3), (300.0, 3)],
)
def test_it_is_the_least_with_which_groups_are_complete_in_time(generate_s: float, number: int) -> None:
    """Trainers need 10 s: groups that take 10.2 have to begin two steps ahead."""
    found = numbers([generate_s] * 60, [10.0] * 60)
    # Steps 1 to 4 began at once, on cold engines; step 5 is the first one that is measured.
    assert found[: MOST + 2] == [MOST] * (MOST + 2)
    assert set(found[MOST + 2 :]) == {number}


@pytest.mark.parametrize(("generate_s", "number"), [(10.04, 1), (10.06, 2)])
def test_trainers_may_wait_for_half_a_percent(generate_s: float, number: int) -> None:
    assert numbers([generate_s] * 60, [10.0] * 60)[-1] == number


def test_a_step_that_came_late_counts_until_it_is_forgotten() -> None:
    late = 20
    found = numbers([5.0] * late + [17.0] + [5.0] * 60, [10.0] * 81)
    assert set(found[MOST + 2 : late + 1]) == {1}
    assert found[late + 1 : late + 1 + NUM_STEPS] == [2] * NUM_STEPS
    assert set(found[late + 1 + NUM_STEPS :]) == {1}


def test_a_long_interval_of_trainers_hides_no_need() -> None:
    """Every fourth step is evaluated after: the others still need what they need."""
    assert numbers([15.0] * 60, [10.0, 10.0, 10.0, 90.0] * 15)[-1] == 2


def test_steps_that_trainers_waited_for_are_measured_as_if_they_had_not() -> None:
    """Engines take four times as long as trainers. One that waits asks the later, but needs no less."""
    assert set(numbers([40.0] * 60, [10.0] * 60, most=6)[8:]) == {4}


def test_a_bound_of_one_is_one_always() -> None:
    for generate_s in (1.0, 300.0):
        assert set(numbers([generate_s] * 40, [10.0] * 40, most=1)) == {1}
