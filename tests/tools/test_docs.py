"""The generated references are those of the code."""

import pytest

from slime.tools import docs


@pytest.mark.parametrize("name", docs.pages())
def test_reference_is_up_to_date(name: str) -> None:
    assert (docs.docs_folder() / name).read_text() == docs.pages()[name], "run `python -m slime.tools.docs`"
