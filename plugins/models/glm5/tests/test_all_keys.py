"""A step where queries that see no more keys than would be chosen attend to all, beside one where all attend to chosen
keys: the same metrics and gradients. In fp32 they differ in the order of sums, in bf16 in what is rounded between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

HF = json.loads((Path(__file__).parent / "configs/dsa.json").read_text()) | {"index_n_heads": 32}
"""So many index heads that no two scores are equal: of equal ones it is open on CUDA which is chosen."""
TRAINED = {"dsa_indexer_loss_coeff": 0.5}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "longer": (8, {"bf16": False}),
    "longer, trained": (8, {"bf16": False, **TRAINED}),
    "no longer, trained": (4096, {"bf16": False, **TRAINED}),
}
"""Keys that are chosen, beside which sequences are longer or not, and `train.megatron`."""
ON_GPU = {"longer": CASES["longer"]} | {
    f"{name}, bf16": (topk, {**megatron, "bf16": True}) for name, (topk, megatron) in CASES.items() if name != "longer"
}

Found = tuple[dict[str, float], dict[str, float], float]
"""Metrics of one step as it is and of one with chosen keys for all, and the distance of the gradients."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Found]:
    """Of each case, all in one start of the process."""
    from slime_testing.models import write_checkpoint

    folders = {topk: tmp_path_factory.mktemp("checkpoint") for topk, _ in CASES.values()}
    for topk, folder in folders.items():
        write_checkpoint(HF | {"index_topk": topk}, folder)
    cases = CASES if request.param == "cpu" else ON_GPU
    given = {name: (folders[topk], megatron) for name, (topk, megatron) in cases.items()}
    [of_cases] = run_ranks(both_ways, 1, request.param, given, timeout_s=200)
    return of_cases  # type: ignore[no-any-return]


def test_both_ways_are_one_function(found: dict[str, Found]) -> None:
    """In bf16 a few tokens choose other experts and keys, too: far from what another function would make."""
    for name, (as_it_is, chosen, distance) in found.items():
        tolerance, off = ({"rel": 0.05, "abs": 0.02}, 0.3) if "bf16" in name else ({"rel": 1e-5, "abs": 2e-5}, 1e-4)
        assert as_it_is == pytest.approx(chosen, **tolerance), name
        assert distance < off, name


def both_ways(rank: Rank, device: str, cases: Mapping[str, tuple[Path, Mapping[str, Any]]]) -> dict[str, Found]:
    from slime_megatron.sparse_attention.split import Split

    def for_all(runs: Any, topk: int, *given: Any) -> Split:
        """All queries but the first of a sequence see more keys than this one."""
        return as_it_is(runs, 1, *given)

    found, as_it_is = {}, Split.of
    for name, (folder, megatron) in cases.items():
        values, gradients = [], []
        for of in (as_it_is, for_all):
            Split.of = of  # type: ignore[method-assign, assignment]
            metrics, gradient = step(rank, device, folder, megatron)
            values.append(metrics)
            gradients.append(gradient)
            rank = rank.again()
            torch.distributed.destroy_process_group()
        assert not torch.equal(*gradients), "nothing is computed otherwise"
        found[name] = (*values, float((gradients[0] - gradients[1]).norm() / gradients[1].norm()))
    return found


def step(rank: Rank, device: str, folder: Path, megatron: Mapping[str, Any]) -> tuple[dict[str, float], torch.Tensor]:
    from slime.config.schema import Device, LossMean, SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer
    from slime_testing.recorded import recorded_samples

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
