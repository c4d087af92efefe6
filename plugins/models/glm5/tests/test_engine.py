"""SGLang's own model of the family, built without a GPU: it serves sparse attention on GPUs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sparse_engine import check_the_engine_builds

ASSETS = Path(__file__).parents[1] / "slime_plugin_glm5/assets"
TINY = ASSETS / "glm5-tiny/config.json"
FILES = {"glm5-tiny": TINY, **{name: ASSETS / f"{name}/config.json" for name in ("GLM-5.1", "GLM-5.2")}}


@pytest.mark.slow
def test_the_engine_takes_the_config_and_shares_indices_as_we_do(tmp_path: Path) -> None:
    check_the_engine_builds(FILES, tmp_path)
