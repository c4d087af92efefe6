"""Weight gradients that go straight into DDP's fp32 buffers are those that autograd would have brought there.

Also with two micro-batches, with the reduction under way during the backward pass, and with tied embeddings, whose
weight has a second gradient. Equal up to the order of sums in fp32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

from .one_rank import HF


@pytest.mark.slow
def test_fused_gradients_equal_autograds(tmp_path: Path) -> None:

    folders = {tied: tmp_path / str(tied) for tied in (False, True)}
    for tied, folder in folders.items():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(HF | {"rms_norm_eps": 1e-5, "tie_word_embeddings": tied}))
    results = run_ranks(gradients, 1, folders)[0]
    for tied in folders:
        for overlap in (False, True):
            wanted, got = results[tied, False, False], results[tied, True, overlap]
            assert len(wanted) > 10
            for name, gradient in wanted.items():
                np.testing.assert_allclose(
                    got[name], gradient, atol=1e-6 * np.abs(gradient).max(), err_msg=f"{name} {tied=} {overlap=}"
                )


def gradients(rank: Rank, folders: dict[bool, Path]) -> dict[tuple[bool, bool, bool], dict[str, Any]]:
    found = {}
    for tied, folder in folders.items():
        for fused, overlap in ((False, False), (True, False), (True, True)):
            found[tied, fused, overlap] = _gradients(rank, folder, fused, overlap)
            torch.distributed.destroy_process_group()
            rank = rank.again()
    return found


def _gradients(rank: Rank, folder: Path, fused: bool, overlap: bool) -> dict[str, Any]:
    from slime.config.schema import Init, LossMean, SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer
    from slime_testing.recorded import recorded_samples

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.model.init, cfg.run.num_steps = "glm4", str(folder), Init.random, 1
    cfg.train.megatron = {"gradient_accumulation_fusion": fused}
    cfg.train.ddp = {"overlap_grad_reduce": overlap}
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    (batch,) = pack(recorded_samples(8, 96), num_dp=1, align=1, max_tokens=150, loss_mean=LossMean.token)
    assert len(batch.micro_batches[0]) > 1
    trainer.train([batch], 0, "rl")
    return {name: p.main_grad.numpy().copy() for name, p in trainer.model.modules[0].named_parameters()}
