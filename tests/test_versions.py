"""The quick reading of what a plugin asks for agrees with `packaging`'s own."""

import pytest

from slime.plugins import other_versions


@pytest.mark.parametrize(
    ("version", "requires", "others"),
    [
        ("0.1.0", ["slime-rl<0.2,>=0.1"], ""),
        ("0.1.7", ["pluggy", "slime-rl>=0.1,<0.2"], ""),
        ("0.2.0", ["slime-rl<0.2,>=0.1"], "<0.2,>=0.1"),
        ("0.10.0", ["slime-rl<0.2,>=0.1"], "<0.2,>=0.1"),
        ("0.1.0", ["slime_rl (>=0.1)"], ""),
        ("0.1.0", ["slime-rl<0.3,>=0.2"], "<0.3,>=0.2"),
        ("0.1.0", ["slime-rl>=0.2; python_version < '3'"], ""),
        ("0.1.0", [], ""),
    ],
)
def test_the_versions_of_a_plugin(version: str, requires: list[str], others: str) -> None:
    assert other_versions("slime-rl", version, requires) == others
