"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_testing.generation import check_generation
from tests.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_gemma3/assets"


TOLERANCE = 3e-5
"""Nats, fp32: 1.5e-5 was seen. Tied embeddings of unit size make logits of 11, whose rounding is that much coarser."""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gemma3-tiny"])
def test_generation_follows_the_weights(model: str, tmp_path: Path) -> None:
    check_generation(f"pkg://slime_plugin_gemma3/assets/{model}", tmp_path, tolerance=TOLERANCE)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("gemma-3-270m-it", "gemma-3-1b-it")], tmp_path)
