"""`slime follow`, as far as it goes without an engine; with one: `tests/weights/publisher/test_publish.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.__main__ import main
from slime.net import LOOPBACK, free_port
from slime_plugin_disk.publish import Disk, VersionFolder
from slime_testing.publishing import publish_over


def test_a_folder_without_versions_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert main(["follow", str(folder), "http://127.0.0.1:9", "--once"]) == 2
        assert capsys.readouterr().err.startswith(f"slime: {folder}: there is no version of weights. Name weights.path")


def test_an_engine_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transport = Disk([], None, VersionFolder(tmp_path, 1), 7, torch.device("cpu"))  # type: ignore[arg-type]
    publish_over(transport, iter([("w", torch.zeros(3))]), 7, 64)
    url = f"http://{LOOPBACK}:{free_port(LOOPBACK)}"
    assert main(["follow", str(tmp_path), url, "--once"]) == 2
    error = capsys.readouterr().err
    assert f"publish of weight version 7 to engine {url}: is not reachable" in error
