"""How much of a difference replay leaves: by tokens, of mixtures of experts alone."""

from __future__ import annotations

from tests.agreement import Agreement


def row(**causes: float) -> Agreement:
    return Agreement("", "", "", 0, 0.0, 0.0, 0.0, 0.0, 0.0, causes)


def test_the_share_that_is_left_is_that_of_all_tokens() -> None:
    from generation import what_is_left

    few = row(own_experts=0.1, same_experts=0.1, num_tokens=100.0)
    many = row(own_experts=0.3, same_experts=0.05, num_tokens=300.0)
    dense, in_fp8 = row(), row(own_experts=9.0, rest=1.0, num_tokens=100.0)
    assert what_is_left([few, dense, many, in_fp8]).startswith("replay leaves 25.0% of the difference")
    assert what_is_left([dense]).startswith("no mixture of experts")
