"""Fixtures that tests of distributions share with those of core; `tests/conftest.py` has them."""

from tests.conftest import _files_of_the_same_choices_are_composed_once, _mooncake, _no_run_outlives_its_test
from tests.site import site

__all__ = ["_files_of_the_same_choices_are_composed_once", "_mooncake", "_no_run_outlives_its_test", "site"]
