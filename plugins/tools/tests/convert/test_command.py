"""`slime convert`: a checkpoint of two ranks and a config.json alone become HF folders, right to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file

from slime import plugins
from slime.checkpoints import CheckpointStore
from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.config.schema import Init, LossMean, SlimeConfig
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.types import TrainSample
from slime_testing.patience import run_within
from slime_testing.ranks import Rank, run_ranks
from slime_tools.convert import command

MODEL = "pkg://slime_plugin_glm4/assets/glm4-tiny"


def run_config() -> SlimeConfig:
    cfg = SlimeConfig()
    cfg.model.name, cfg.model.family, cfg.model.path, cfg.model.init = "tiny", "glm4", MODEL, Init.random
    cfg.cluster.name, cfg.run.num_steps, cfg.data.path, cfg.reward.name = "local2", 1, "prompts.jsonl", "math"
    cfg.sft.num_steps, cfg.train.megatron = 1, {"tensor_model_parallel_size": 2}
    return cfg


def save(rank: Rank, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, FileFacts]]:
    """Take one step, save a checkpoint; returns what it should become, and the facts of this rank's files."""
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    trainer = Trainer(run_config(), *rank)
    trainer.init_weights()
    sample = TrainSample(tokens=np.arange(8), loss_mask=np.ones(4, dtype=np.int64))
    [batch] = pack([sample], num_dp=1, align=trainer.packing_align, max_tokens=64, loss_mean=LossMean.token)
    trainer.train([batch], 0, "sft")
    written = trainer.save(folder)
    return dict(trainer.export()), written


def slime(*argv: str) -> subprocess.CompletedProcess[str]:
    return run_within(60, [sys.executable, "-m", "slime", *argv], check=False)


@pytest.mark.slow
def test_checkpoint_of_two_ranks_becomes_one_hf_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(run_config())))
    with CheckpointStore(run / "checkpoints", keep=1).saving(3, {}) as staging:
        (expected, written), (_, also_written) = run_ranks(save, 2, staging.path)
        assert written.keys() == {"__0_0.distcp", "__0_1.distcp", ".metadata"}
        assert also_written.keys() == {"__1_0.distcp", "__1_1.distcp"}
        staging.written |= written | also_written  # which the manifest has then, and reading compares
    done = slime("convert", "dist-to-hf", str(run), str(tmp_path / "hf"))
    assert done.stdout == f"wrote {tmp_path / 'hf'}\n", done.stderr
    written = load_file(tmp_path / "hf/model.safetensors")
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in expected.items())
    assert (tmp_path / "hf/tokenizer.json").read_bytes() == (resolve(MODEL) / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_random_weights_of_a_seed_are_a_whole_model(tmp_path: Path) -> None:
    assert slime("convert", "random", MODEL, str(tmp_path / "hf"), "--seed", "7").returncode == 0
    hf = json.loads((tmp_path / "hf/config.json").read_text())
    written = load_file(tmp_path / "hf/model.safetensors")
    assert written.keys() == plugins.load().models.create("glm4").weight_mapping(hf).hf_names
    spread = written["model.layers.0.self_attn.q_proj.weight"].std().item()
    # 16384 normal values: their standard deviation is within 3 % of the true one but for one seed in 10^7
    assert abs(spread / hf["initializer_range"] - 1) < 0.03


def test_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match=r"neither a run \(config.yaml\) nor a checkpoint"):
        command.from_dist(tmp_path, tmp_path / "hf")


def test_step_that_was_not_kept(tmp_path: Path) -> None:
    cfg = examine(["+model=glm4-tiny", "+cluster=local"]).cfg  # with the keys that plugins add
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.structured(cfg)))
    (tmp_path / "checkpoints/step-000010").mkdir(parents=True)
    with pytest.raises(SlimeError, match=r"no checkpoint of step 7.*the steps: 10\."):
        command.from_dist(tmp_path, tmp_path / "hf", step=7)
