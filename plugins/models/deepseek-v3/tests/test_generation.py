"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from slime_megatron.fp8_block.config import Fp8Format
from slime_testing.generation import check_generation
from tests.on_gpu import check_on_gpu

ASSETS = Path(__file__).parents[1] / "slime_plugin_deepseek_v3/assets"


@pytest.mark.slow
def test_generation_follows_the_weights(tmp_path: Path) -> None:
    check_generation("pkg://slime_plugin_deepseek_v3/assets/deepseek-v3-tiny", tmp_path)


@pytest.mark.slow
def test_engines_in_fp8_follow_the_weights(tmp_path: Path) -> None:
    """Latent attention: both down projections are loaded as one with all their scales, and what the engine absorbs of
    the up projection is made of its E4M3 values again after each publish. Sizes that come out in whole blocks."""
    shutil.copytree(ASSETS / "deepseek-v3-tiny", tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"q_lora_rank": 128, "moe_intermediate_size": 128}))
    check_generation(str(tmp_path), tmp_path, form=Fp8Format(powers_of_two=True))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes(tmp_path: Path) -> None:
    """The trainer's log-probs on a GPU are the engine's."""
    check_on_gpu([ASSETS / f"{model}/config.json" for model in ("DeepSeek-R1", "DeepSeek-V3.2")], tmp_path)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(700)
def test_real_head_sizes_in_fp8(tmp_path: Path) -> None:
    """Weights in E4M3 are the trainer's own; what remains are activations in E4M3."""
    check_on_gpu([ASSETS / "DeepSeek-R1/config.json"], tmp_path, fp8="block")
