"""`slime follow`, as far as it goes without an engine; with one: `tests/weights/publisher/test_publish.py`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slime.__main__ import main
from slime.net import LOOPBACK, reserved_port
from slime_sglang.disk.publish import Disk, VersionFolder
from slime_testing.publishing import publish_over


def test_a_folder_without_versions_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert main(["follow", str(folder), "http://127.0.0.1:9", "--once"]) == 2
        assert capsys.readouterr().err.startswith(f"slime: {folder}: there is no version of weights. Name weights.path")


def publish(folder: Path) -> None:
    transport = Disk([], None, VersionFolder(folder, 1), 7, torch.device("cpu"))  # type: ignore[arg-type]
    publish_over(transport, iter([("w", torch.zeros(3))]), 7, 64)


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(tmp_path)
    with reserved_port(LOOPBACK) as port:
        url = f"http://{LOOPBACK}:{port}"
        assert main(["follow", str(tmp_path), url, "--once"]) == 2
    error = capsys.readouterr().err
    assert f"publish of weight version 7 to engine {url}: is not reachable" in error


ASKING = """
import signal, sys, threading
from slime.__main__ import main

def start(thread, whole=threading.Thread.start):
    whole(thread)
    if not isinstance(thread, threading.Timer):  # as those that bound plugins
        {then}

threading.Thread.start = start
sys.exit(main(["follow", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("then", ["signal.raise_signal(signal.SIGINT)", "pass"], ids=["as it is asked", "as it loads"])
def test_an_interrupt_does_not_wait_for_an_engine(tmp_path: Path, then: str) -> None:
    publish(tmp_path)
    with socket.create_server((LOOPBACK, 0)) as silent:
        url = f"http://{LOOPBACK}:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", ASKING.format(then=then), str(tmp_path), url]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as follow:
            try:
                if then == "pass":
                    silent.settimeout(250)
                    _asked, _ = silent.accept()
                    follow.send_signal(signal.SIGINT)
                assert follow.communicate(timeout=250)[1] == "slime: interrupted\n"
            finally:
                follow.kill()
            assert follow.returncode == 130
