"""The generated references are those of the code."""

import pytest

from upkeep import docs


@pytest.mark.parametrize("name", docs.pages())
def test_reference_is_up_to_date(name: str) -> None:
    assert (docs.DOCS / name).read_text() == docs.pages()[name], "run `python upkeep/docs.py`"
