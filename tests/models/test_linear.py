"""What modules are asked for with `isinstance`."""

from __future__ import annotations

import pytest
from typing_extensions import get_protocol_members

from slime.models.layer_losses import HasLosses
from slime.models.linear import Adapted


@pytest.mark.parametrize("protocol", [Adapted, HasLosses])
def test_protocols_of_modules_have_methods_alone(protocol: type) -> None:
    """From Python 3.12 on `isinstance` looks members up without `__getattr__`, by which a module finds its parameters:
    an adapted layer was none there, and engines got the weights without its adapter."""
    members = get_protocol_members(protocol)
    assert members
    assert all(callable(getattr(protocol, member, None)) for member in members)
