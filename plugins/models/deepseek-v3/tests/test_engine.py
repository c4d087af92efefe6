"""SGLang's own model of `deepseek_v32`, built without a GPU: it serves sparse attention on GPUs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sparse_engine import check_the_engine_builds

ASSETS = Path(__file__).parents[1] / "slime_plugin_deepseek_v3/assets"


@pytest.mark.slow
def test_the_engine_takes_the_config_and_chooses_as_we_do(tmp_path: Path) -> None:
    models = {"tiny": "deepseek-v3.2-tiny", "published": "DeepSeek-V3.2"}
    check_the_engine_builds({name: ASSETS / f"{model}/config.json" for name, model in models.items()}, tmp_path)
