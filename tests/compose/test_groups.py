"""What may be chosen, and what is said where there is nothing to choose."""

import pytest

from slime.compose.groups import Groups, scan
from slime.errors import SlimeError
from slime.plugins import discover


@pytest.fixture
def bare() -> Groups:
    """slime without any plugin, as `pip install slime-rl` leaves it."""
    return scan(discover([]))


def test_without_plugins_it_says_what_to_install(bare: Groups) -> None:
    with pytest.raises(SlimeError, match=r"no model=acme\. None is installed: install the plugin of its family, "):
        bare.require("model", "acme")
    assert "install slime-rewards or another plugin as docs/install.md says" in bare.choose("reward")


def test_choices_are_written_as_the_user_writes_them(bare: Groups) -> None:
    assert bare.choose("buffer") == "Choose one: buffer=fifo, buffer=function."
    assert bare.choose("cluster", "+").startswith("Choose one: +cluster=h100x1, +cluster=h100x8, ")
