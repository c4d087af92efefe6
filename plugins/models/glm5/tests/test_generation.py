"""What the engine says of its tokens is what the trainer says. SGLang serves sparse attention on GPUs alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_glm5/assets"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("GLM-5.2",)], tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes_in_fp8(tmp_path: Path) -> None:
    """Weights in E4M3 are the trainer's own; what remains are activations in E4M3."""
    check_on_gpu([ASSETS / "GLM-5.2/config.json"], tmp_path, fp8="block")
