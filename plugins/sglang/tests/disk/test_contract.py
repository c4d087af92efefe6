"""The transport `disk` keeps the contract of `slime_transports`."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.config.paths import resolve
from slime_testing.engines import running_engine
from slime_testing.transports import check_transport


@pytest.mark.slow
def test_contract(tmp_path: Path) -> None:
    model = resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")
    with running_engine(model, tmp_path / "engine.log") as engine:
        check_transport("disk", engine.endpoint, model, path=str(tmp_path / "weights"), full_every=20)
