"""How often trainers start again."""

from slime.trainer_return import Budget


def test_deaths_count_for_a_while():
    budget = Budget(2, 60.0)
    assert [budget.spend(now, now) for now in (0, 50)] == [1, 2]
    assert budget.spend(55, 55) == 0
    assert budget.spend(61, 61) == 2, "the first counts no more"
    assert budget.spend(62, 62) == 0


def test_deaths_in_a_step_that_is_not_passed_count_on():
    budget = Budget(2, 60.0)
    assert [budget.spend(now, 7) for now in (0, 100, 200)] == [1, 2, 0]
    assert budget.spend(300, 8) == 1


def test_nothing_starts_again_without_a_budget():
    assert Budget(0, 60.0).spend(0, 0) == 0
