"""Ports, and the stores at which processes meet."""

import os
import shutil
import socket
import sys
import tempfile
from datetime import timedelta

import pytest

from slime.net import LOOPBACK, file_store, reserved_port
from slime_testing.patience import run_within


def test_ports_that_follow_one_another_are_held_but_for_a_server_that_listens():
    with reserved_port(LOOPBACK, 3) as port, reserved_port(LOOPBACK, 3) as other:
        assert abs(other - port) > 3
        for number in range(port, port + 4):
            with socket.socket() as taken, pytest.raises(OSError, match="in use"):
                taken.bind((LOOPBACK, number))
            with socket.create_server((LOOPBACK, number)) as server:  # allows reuse, as every server does
                assert server.getsockname()[1] == number
    assert any(map(is_free, range(port, port + 4))), "a stranger takes one at most at this very moment"


def is_free(port):
    with socket.socket() as free:
        try:
            free.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_who_may_not_open_the_file_does_not_join_its_store(tmp_path):
    """Two stores of the owner's see each other's keys; `nobody` sees neither."""
    folder = tempfile.mkdtemp(prefix="slime-test-", dir="/tmp")
    one, other = (file_store(f"{folder}/ranks", timedelta(seconds=5)) for _ in range(2))
    one.set("key", "value")
    assert other.get("key") == b"value"
    program = """
import os, sys
from datetime import timedelta
import torch
from slime.net import file_store
os.setgid(65534), os.setuid(65534)
file_store(sys.argv[1], timedelta(seconds=5)).set("key", "stranger")
"""
    command = [sys.executable, "-c", program, f"{folder}/ranks"]
    stranger = run_within(120, command, check=False)
    assert stranger.returncode != 0
    assert "Permission denied" in stranger.stderr
    assert one.get("key") == b"value"
    shutil.rmtree(folder)
