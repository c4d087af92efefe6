"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_testing.generation import check_generation
from tests.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_qwen3/assets"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-moe-tiny"])
def test_generation_follows_the_weights(model: str, tmp_path: Path) -> None:
    check_generation(f"pkg://slime_plugin_qwen3/assets/{model}", tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("Qwen3-4B", "Qwen3-30B-A3B")], tmp_path)
