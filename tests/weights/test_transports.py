"""What is said of a transport, or of its keys, where its distribution is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slime import plugins
from slime.compose import groups
from slime.compose.overrides import read_command_line
from slime.config.extended import add_keys, schemas_of
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.topology.topology import read_topology
from slime.weights.transports import transport_problems

HOW = "Run: pip install slime-sglang. In a checkout: pip install ./plugins/sglang, or 'make setup'."


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[plugins.Plugins]:
    """slime's own contributions, and no plugin."""
    plugins.load()
    whole, alone = dict(schemas_of("transport")), plugins.discover([])
    monkeypatch.setattr(plugins, "load", lambda: alone)
    add_keys("transport", {})
    yield alone
    add_keys("transport", whole)


def problem(transport: str) -> str:
    cfg = SlimeConfig()
    cfg.weights.transport = transport
    (found,) = transport_problems(read_topology(cfg))
    return str(found)


def test_the_distribution_of_a_transport_is_named(core_alone: plugins.Plugins) -> None:
    assert problem("disk") == f"weights.transport: no transport named 'disk' is installed. {HOW}"
    assert problem("icp").endswith("no transport named 'icp' is installed. Choose one of: auto, ipc.")
    assert "Run: pip install slime-sglang." in problem("broadcast")


@pytest.mark.parametrize("item", ["weights.path=/x", "weights.full_every=5"])
def test_the_distribution_of_a_key_is_named(core_alone: plugins.Plugins, item: str) -> None:
    key = item.partition("=")[0]
    with pytest.raises(SlimeError) as raised:
        read_command_line([item], groups.scan(core_alone))
    assert str(raised.value) == f"there is no key '{key}'. {HOW}"
