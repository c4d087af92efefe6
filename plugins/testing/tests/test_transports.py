"""The contract test of a transport: slime's own pass it, and what breaks the contract is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime.weights.publisher.handover import Outcome
from slime.weights.publisher.shared_memory import SharedMemory
from slime.weights.transports import SharedMemoryTransport
from slime_testing.transports import check_transport

pytestmark = pytest.mark.slow


def test_slime_s_own(endpoint: Any, tiny_model: Path) -> None:
    check_transport("ipc", endpoint, tiny_model)


def test_a_plan_without_links_is_named(monkeypatch: pytest.MonkeyPatch, endpoint: Any, tiny_model: Path) -> None:
    monkeypatch.setattr(SharedMemoryTransport, "links", lambda *arguments: [])
    with pytest.raises(AssertionError, match="links\\(\\) is empty"):
        check_transport("ipc", endpoint, tiny_model)


def test_a_handover_that_counts_no_bytes_is_named(
    monkeypatch: pytest.MonkeyPatch, endpoint: Any, tiny_model: Path
) -> None:
    monkeypatch.setattr(SharedMemory, "finish", lambda self, sent: Outcome(sent, self.await_answers(), 0))
    with pytest.raises(AssertionError, match="what was sent or written is counted"):
        check_transport("ipc", endpoint, tiny_model)
