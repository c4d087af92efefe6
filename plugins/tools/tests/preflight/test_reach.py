"""Hosts that try each other, which are all this one; over Ray and two hosts in `tests/test_run_two_hosts.py`."""

from __future__ import annotations

import socket

from slime.net import LOOPBACK
from slime_tools.preflight.reach import TODO, Listener


def test_a_port_that_refuses_is_named_with_its_host() -> None:
    first, second = Listener(LOOPBACK), Listener(LOOPBACK)
    with socket.socket() as closed:
        closed.bind((LOOPBACK, 0))  # nobody else gets it, and it does not listen
        port = closed.getsockname()[1]
        (fault,) = first.missed({"b": second.address(), "c": (LOOPBACK, port)})
    assert (fault.what, fault.todo) == (f"it does not reach c at {LOOPBACK}:{port} (Connection refused)", TODO)


def test_many_may_try_at_once() -> None:
    """The kernel accepts for one that says nothing."""
    listener = Listener(LOOPBACK)
    assert listener.missed({str(number): listener.address() for number in range(100)}) == []
