"""What slime itself contributes keeps the contract that plugins keep."""

from slime.types import Decision
from slime_testing.plugins import check_filter


def test_the_filter_none_keeps_every_group_that_can_have_an_advantage() -> None:
    few = Decision(keep=False, reason="too_few_values")
    keep = Decision(keep=True)
    check_filter("none", [([1.0, 1.0], keep), ([0.0, 1.0, None], keep), ([1.0, None], few), ([None, None], few)])
    check_filter("none", [([0.5], keep), ([None], few)])
