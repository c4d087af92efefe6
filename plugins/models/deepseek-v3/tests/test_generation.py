"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.testing.generation import check_generation


@pytest.mark.slow
def test_generation_follows_the_weights(tmp_path: Path) -> None:
    check_generation("pkg://slime_plugin_deepseek_v3/assets/deepseek-v3-tiny", tmp_path)
