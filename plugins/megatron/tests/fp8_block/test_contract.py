"""What slime relies on, and what is said where the distribution is not installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slime import plugins
from slime.compose import groups
from slime.compose.compose import examine
from slime.compose.overrides import read_command_line
from slime.config.extended import add_keys, schemas_of
from slime.errors import SlimeError
from slime_megatron.fp8_block.config import Fp8Blocks, Fp8Format
from slime_testing.quantizations import check_format, check_quantization

HOW = "Run: pip install slime-megatron. In a checkout: pip install ./plugins/megatron, or 'make setup'."


def test_contract() -> None:
    check_quantization("fp8")


def test_contract_with_rounded_scales() -> None:
    check_format(Fp8Blocks(), Fp8Format(powers_of_two=True).to_config(), "rollout.fp8")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[plugins.Plugins]:
    """Everything but this distribution."""
    whole = plugins.load()
    others = plugins.Plugins([each for each in whole.installed if each.distribution != "slime-megatron"])
    schemas = dict(schemas_of("quantization"))
    monkeypatch.setattr(plugins, "load", lambda: others)
    add_keys("quantization", {})
    yield others
    add_keys("quantization", schemas)


def test_a_line_says_what_brings_the_key(not_installed: plugins.Plugins) -> None:
    with pytest.raises(SlimeError) as raised:
        read_command_line(["rollout.fp8=block"], groups.scan(not_installed))
    assert str(raised.value) == f"there is no key 'rollout.fp8'. {HOW}"


def test_a_line_says_what_a_recipe_needs(not_installed: plugins.Plugins) -> None:
    with pytest.raises(SlimeError) as raised:
        examine(["+model=glm5", "+cluster=h100x256"])
    assert "there is no key 'rollout.fp8'" in str(raised.value)
    assert str(raised.value).endswith(HOW)
