"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.testing.generation import check_generation
from slime.testing.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_deepseek_v3/assets"


@pytest.mark.slow
def test_generation_follows_the_weights(tmp_path: Path) -> None:
    check_generation("pkg://slime_plugin_deepseek_v3/assets/deepseek-v3-tiny", tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("DeepSeek-R1", "DeepSeek-V3.2")], tmp_path)
