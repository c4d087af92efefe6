"""`model.batch_invariant`: log-probs of a real engine and of the trainer are equal to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slime.config.hf import read_hf_config
from slime.config.schema import Device
from slime.net import LOOPBACK
from slime.topology.topology import read_topology
from slime_testing.engines import server, started
from slime_testing.models import write_checkpoint
from slime_testing.ranks import run_ranks
from tests.invariant import Row, Sizes, measured
from tests.on_gpu import setup

ROOT = Path(__file__).parents[2]
SIZES = Sizes(6, (5, 20, 70), 20)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = {
    "glm4": ("glm4/slime_plugin_glm4/assets/glm4-tiny", {}),
    "qwen2": ("qwen2/slime_plugin_qwen2/assets/qwen2-tiny", {}),
    "qwen3": ("qwen3/slime_plugin_qwen3/assets/qwen3-tiny", {}),
    "glm4-moe": (
        "glm4/slime_plugin_glm4/assets/glm4-moe-tiny",
        {"routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0},
    ),
    "qwen3-moe": ("qwen3/slime_plugin_qwen3/assets/qwen3-moe-tiny", {}),
    "llama": (
        "llama/slime_plugin_llama/assets/llama-tiny",
        {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8192}},
    ),
}

BF16 = [(case, "bfloat16") for case in ("glm4", "glm4-moe", "qwen3-moe")]


def row(folder: Path, case: str, dtype: str, wanted: bool) -> Row:
    assets, fields = CASES[case]
    hf = read_hf_config(str(ROOT / "plugins/models" / assets)) | fields
    (folder / "weights").mkdir()
    write_checkpoint(hf, folder / "weights", dtype=getattr(torch, dtype))
    (folder / "weights/config.json").write_text(json.dumps(hf))
    cfg = setup(hf, folder, Device.cpu, {"dtype": dtype})
    cfg.model.batch_invariant = wanted
    topology = read_topology(cfg)
    with started([server(topology, host=LOOPBACK, log=folder / "engine.log")]) as [engine]:
        [found] = run_ranks(measured, 1, cfg, engine.endpoint, SIZES, 1, timeout_s=120)
    if wanted:
        assert "#cached-token: 0," in (log := (folder / "engine.log").read_text()), "prompts are computed"
        assert any(f"#cached-token: {most}" in log for most in range(100, 400)), "continued answers are behind a prefix"
    return Row(*found)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype"), [*((case, "float32") for case in CASES), *BF16])
def test_no_bit_is_apart(tmp_path: Path, case: str, dtype: str) -> None:
    found = row(tmp_path, case, dtype, wanted=True)
    assert found.num_tokens == 2 * SIZES.requests * SIZES.answer
    assert found.largest == found.unequal == 0


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dtype"), [("glm4", "float32"), *BF16])
def test_without_the_key_most_are(tmp_path: Path, case: str, dtype: str) -> None:
    found = row(tmp_path, case, dtype, wanted=False)
    assert 0 < found.mean < 0.05
    assert found.unequal > 0.3
