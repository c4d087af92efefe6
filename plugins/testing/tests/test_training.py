"""How metrics of two layouts are compared."""

from __future__ import annotations

import pytest

from slime_testing.training import Trained, compare


def trained(**metrics: float) -> Trained:
    return Trained({}, [metrics], [])


def test_a_large_maximum_is_compared_by_its_size() -> None:
    """The numbers with which the contract once failed a right family: four parts in a million."""
    compare("tp2", [trained(importance_ratio_max=3.8988142)], trained(importance_ratio_max=3.8988309))


def test_a_mean_is_compared_by_its_size_above_one_alone() -> None:
    """fp32 has steps of 5e-7 at 4."""
    compare("tp2", [trained(loss=4.000006)], trained(loss=4.0))
    with pytest.raises(AssertionError, match="apart of 2e-06 allowed"):
        compare("tp2", [trained(loss=0.500006)], trained(loss=0.5))


@pytest.mark.parametrize(
    ("name", "got", "wanted", "told"),
    [
        ("importance_ratio_max", 3.8998, 3.8988, "2.6e-04 apart of 1e-05 allowed"),
        ("logprob_diff_max", 0.00005, 0.00002, "3.0e-05 apart of 1e-05 allowed"),
        ("loss", 4.00001, 4.0, "2.5e-06 apart of 2e-06 allowed"),
    ],
)
def test_a_real_difference_is_told_with_its_tolerance(name: str, got: float, wanted: float, told: str) -> None:
    with pytest.raises(AssertionError, match=f"tp2 step 0 {name}: {got} not {wanted}, {told}"):
        compare("tp2", [trained(**{name: got})], trained(**{name: wanted}))
