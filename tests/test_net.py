"""Ports."""

import socket

import pytest

from slime.net import LOOPBACK, reserved_port


def test_ports_that_follow_one_another_are_held_but_for_a_server_that_listens():
    with reserved_port(LOOPBACK, 3) as port, reserved_port(LOOPBACK, 3) as other:
        assert abs(other - port) > 3
        for number in range(port, port + 4):
            with socket.socket() as taken, pytest.raises(OSError, match="in use"):
                taken.bind((LOOPBACK, number))
            with socket.create_server((LOOPBACK, number)) as server:  # allows reuse, as every server does
                assert server.getsockname()[1] == number
    with socket.socket() as free:
        free.bind((LOOPBACK, port))
