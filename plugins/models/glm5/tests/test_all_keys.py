"""A step where queries that see no more keys than would be chosen attend to all, beside one where all attend to chosen
keys: the same metrics and gradients, which differ in the order of sums, in bf16 in what is rounded between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.testing.ranks import Rank, run_ranks

HF = json.loads((Path(__file__).parent / "configs/dsa.json").read_text()) | {"index_n_heads": 32}
"""So many index heads that no two scores are equal: of equal ones it is open on CUDA which is chosen."""
TRAINED = {"dsa_indexer_loss_coeff": 0.5}
CASES = {"longer": (8, {}), "longer, trained": (8, TRAINED), "no longer, trained": (4096, TRAINED)}
"""Sequences beside what is chosen, and `train.megatron`. All have more than one key, which is what is chosen from."""


def both(folder: Path, device: str, bf16: bool, case: str) -> tuple[dict[str, float], dict[str, float], float]:
    from slime.testing.models import write_checkpoint

    topk, megatron = CASES[case]
    write_checkpoint(HF | {"index_topk": topk}, folder)
    [found] = run_ranks(both_ways, 1, device, folder, {**megatron, "bf16": bf16}, timeout_s=200)
    return found  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_both_ways_are_one_function(case: str, tmp_path: Path) -> None:
    split, chosen, distance = both(tmp_path, "cpu", False, case)
    assert split == pytest.approx(chosen, rel=1e-5, abs=1e-6)
    assert distance < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("case", "bf16", "tolerance", "off"),
    [("longer", False, 1e-4, 1e-4), ("longer, trained", True, 0.05, 0.3), ("no longer, trained", True, 0.05, 0.3)],
)
def test_both_ways_on_a_gpu(case: str, bf16: bool, tolerance: float, off: float, tmp_path: Path) -> None:
    """In bf16 a few tokens choose other experts and keys, too: far from what another function would make."""
    split, chosen, distance = both(tmp_path, "cuda", bf16, case)
    assert split == pytest.approx(chosen, rel=tolerance, abs=0.02 if bf16 else 2e-5)
    assert distance < off


def both_ways(
    rank: Rank, device: str, folder: Path, megatron: Mapping[str, Any]
) -> tuple[dict[str, float], dict[str, float], float]:
    """Metrics of one step, as it is and with chosen keys for all, and the distance of the gradients."""
    from slime.testing.training import another_port
    from slime_plugin_sparse_attention.split import Split

    def for_all(runs: Any, topk: int, *given: Any) -> Split:
        return as_it_is(runs, 1, *given)

    values, gradients, as_it_is = [], [], Split.of
    for of in (as_it_is, for_all):
        Split.of = of  # type: ignore[method-assign, assignment]
        metrics, gradient = step(rank, device, folder, megatron)
        values.append(metrics)
        gradients.append(gradient)
        rank = rank._replace(master_port=another_port())
        torch.distributed.destroy_process_group()
    assert not torch.equal(*gradients), "nothing is computed otherwise"
    distance = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    return values[0], values[1], float(distance)


def step(rank: Rank, device: str, folder: Path, megatron: Mapping[str, Any]) -> tuple[dict[str, float], torch.Tensor]:
    from slime.config.schema import Device, LossMean, SlimeConfig
    from slime.testing.recorded import recorded_samples
    from slime.train.packing import pack
    from slime.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.cluster.device, cfg.run.num_steps = Device(device), 1
    cfg.model.family, cfg.model.path = HF["model_type"], str(folder)
    cfg.train.megatron, cfg.train.optimizer = dict(megatron), {"lr": 1e-3}
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay
    samples = recorded_samples(8, HF["vocab_size"])
    [batch] = pack(samples, num_dp=1, align=trainer.packing_align, max_tokens=200, loss_mean=LossMean.token)
    values = trainer.train([batch], 0, "rl")
    buffers = [buffer.grad_data.float().flatten() for part in trainer.model.chunks for buffer in part.buffers]
    names = ("loss", "entropy", "indexer_loss")
    return {name: values[name] for name in names if name in values}, torch.cat(buffers).cpu()
