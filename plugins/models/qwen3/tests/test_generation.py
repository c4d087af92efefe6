"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.testing.generation import check_generation


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-moe-tiny"])
def test_generation_follows_the_weights(model: str, tmp_path: Path) -> None:
    check_generation(f"pkg://slime_plugin_qwen3/assets/{model}", tmp_path)
