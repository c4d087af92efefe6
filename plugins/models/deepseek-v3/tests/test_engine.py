"""SGLang's own model of `deepseek_v32`, built without a GPU: it serves sparse attention on GPUs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.testing.sparse import check_the_engine_builds

HERE = Path(__file__).parent
TINY = HERE.parent / "slime_plugin_deepseek_v3/assets/deepseek-v3.2-tiny/config.json"


@pytest.mark.slow
def test_the_engine_takes_the_config_and_chooses_as_we_do(tmp_path: Path) -> None:
    check_the_engine_builds({"tiny": TINY, "published": HERE / "hub/DeepSeek-V3.2.json"}, tmp_path)
