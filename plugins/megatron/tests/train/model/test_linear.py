"""What modules are asked for with `isinstance`."""

from __future__ import annotations

import pytest
from typing_extensions import get_protocol_members

from slime_megatron.train.model.layer_losses import HasLosses
from slime_megatron.train.model.linear import Adapted
from slime_megatron.transformer.decoder.module import ReadsPack


@pytest.mark.parametrize("protocol", [Adapted, HasLosses, ReadsPack])
def test_protocols_of_modules_have_methods_alone(protocol: type) -> None:
    """From Python 3.12 on `isinstance` looks members up without `__getattr__`, by which a module finds its parameters:
    an adapted layer was none there, and engines got the weights without its adapter."""
    members = get_protocol_members(protocol)
    assert members
    assert all(callable(getattr(protocol, member, None)) for member in members)
