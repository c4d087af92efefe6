"""The misbehaving reward as an installed distribution: a module and its metadata on the import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime import plugins

METADATA = "Metadata-Version: 2.1\nName: reward-zoo\nVersion: 1.2\n"


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`reward-zoo 1.2` is found by this process and by every worker it starts (workers take over `sys.path`)."""
    site = tmp_path_factory.mktemp("site")
    (site / "misbehaving.py").symlink_to(Path(__file__).with_name("misbehaving.py"))
    info = site / "reward_zoo-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[slime]\nzoo = misbehaving\n")
    sys.path.insert(0, str(site))
    plugins.load.cache_clear()
    yield
    sys.path.remove(str(site))
    plugins.load.cache_clear()
