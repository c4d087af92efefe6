"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_plugin_mimo import hf
from slime_testing.generation import check_generation
from tests.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_mimo/assets"


@pytest.mark.slow
def test_generation_follows_the_weights(tmp_path: Path) -> None:
    hf.register()
    check_generation("pkg://slime_plugin_mimo/assets/mimo-tiny", tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    hf.register()
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("MiMo-7B-RL",)], tmp_path)
