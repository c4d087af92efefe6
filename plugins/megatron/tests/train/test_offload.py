"""Offloading: everything comes back bit for bit in the views Megatron-core keeps; the device is free in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

from .one_rank import HF

pytestmark = pytest.mark.slow

WIDE = HF | {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}
EXPERTS = json.loads((Path(__file__).parents[3] / "models/glm4/tests/configs/moe.json").read_text())
NUM_STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(WIDE, folder)
    return folder


def start(rank: Rank, model: Path, device: str, layout: dict[str, Any]) -> Any:
    from slime.config.hf import read_hf_config
    from slime.config.schema import Device, SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path = read_hf_config(str(model))["model_type"], str(model)
    cfg.run.num_steps = NUM_STEPS
    cfg.cluster.device = Device(device)
    cfg.train.megatron, cfg.train.optimizer = layout, {"lr": 1e-3}
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    return trainer


def step(trainer: Any, number: int) -> dict[str, float]:
    from slime.train.packing import pack

    batches = pack(
        recorded_samples(16, HF["vocab_size"]),
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=200,
        loss_mean=trainer.cfg.algo.loss_mean,
    )
    values: dict[str, float] = trainer.train(batches, number, "rl")
    return {name: value for name, value in values.items() if not name.startswith("seconds/")}


def train(rank: Rank, model: Path, layout: dict[str, Any], away: bool) -> tuple[Any, dict[str, torch.Tensor]]:
    """Metrics of every step and the final weights; between the steps the trainer leaves its device, if `away`."""
    trainer, history = start(rank, model, "cpu", layout), []
    for number in range(NUM_STEPS):
        history.append(step(trainer, number))
        if away:
            trainer.offload()
            assert not any(param.untyped_storage().nbytes() for param in trainer.model.modules[0].parameters())
            trainer.onload()
    return history, {name: tensor.clone() for name, tensor in trainer.export(everywhere=True)}


@pytest.mark.parametrize("layout", [{}, {"tensor_model_parallel_size": 2}], ids=["dp2", "tp2"])
def test_training_goes_on_as_if_nothing_had_happened(model: Path, layout: dict[str, Any]) -> None:
    stayed, left = (run_ranks(train, 2, model, layout, away)[0] for away in (False, True))
    assert left[0] == stayed[0]
    assert left[1].keys() == stayed[1].keys()
    assert all(torch.equal(left[1][name], stayed[1][name]) for name in stayed[1])


def leave_and_return(rank: Rank, model: Path, device: str) -> dict[str, Any]:
    """What the trainer held before and after, and the storage bytes while it was away, after a step in bf16."""
    from slime_megatron.train import offload

    trainer = start(rank, model, device, {"bf16": True})
    step(trainer, 0)

    def held() -> list[torch.Tensor]:
        return [tensor.detach().cpu().clone() for tensor in offload.kept(trainer.model, trainer.optimizer)]

    def gradients() -> float:
        return sum(float(buffer.abs().sum()) for buffer in offload.gradients(trainer.model))

    before, before_gradients = held(), gradients()
    reserved = trainer.offload()
    storages = [*offload.kept(trainer.model, trainer.optimizer), *offload.gradients(trainer.model)]
    away = sum(tensor.untyped_storage().nbytes() for tensor in storages)
    trainer.offload()  # twice is once
    trainer.onload()
    trainer.onload()
    after, without = held(), sum(buffer.untyped_storage().nbytes() for buffer in offload.gradients(trainer.model))
    trainer._offload.take_gradients()
    return {
        "same": len(before) == len(after) and all(torch.equal(*pair) for pair in zip(before, after, strict=True)),
        "bytes away": away,
        "gradients": (before_gradients, without, gradients()),
        "residue": reserved,
        "next step": step(trainer, 1),
    }


def next_step(rank: Rank, model: Path, device: str) -> dict[str, float]:
    """Of a trainer that stays on its device."""
    trainer = start(rank, model, device, {"bf16": True})
    step(trainer, 0)
    return step(trainer, 1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_everything_returns_but_the_gradients(model: Path, device: str) -> None:
    [found] = run_ranks(leave_and_return, 1, model, device)
    assert found["same"]
    assert found["bytes away"] == 0
    before, bytes_until_the_next_step, after = found["gradients"]
    assert before > 0
    assert bytes_until_the_next_step == 0
    assert after == 0
    [stayed] = run_ranks(next_step, 1, model, device)
    metrics, wanted = (
        {name: value for name, value in each.items() if not name.startswith(("residue/", "memory/"))}
        for each in (found["next step"], stayed)
    )
    assert metrics == wanted
    assert set(found["residue"]) == (
        {f"residue/{name}_gib" for name in ("allocated", "reserved", "driver")} if device == "cuda" else set()
    )
    # The tiny model's own tensors are gone; cuBLAS keeps its workspaces of some 8 to 80 MiB a handle.
    assert found["residue"].get("residue/allocated_gib", 0) < 0.2


def publish_around(rank: Rank, model: Path) -> tuple[dict[str, torch.Tensor], ...]:
    """What the trainer exports before and after it left its device and took a step; and how a stranger exports it."""
    from slime_megatron.train.weights.export import export_hf

    def copied(tensors: Any) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in tensors}

    trainer = start(rank, model, "cpu", {"bf16": True, "moe_grouped_gemm": True})
    before = copied(trainer.export())
    trainer.offload()
    trainer.onload()
    step(trainer, 0)
    return before, copied(trainer.export()), copied(export_hf(trainer.model.modules, trainer.mapping))


def test_weights_found_before_are_the_ones_exported_after(tmp_path: Path) -> None:
    """Experts that share a parameter are exported through views of it."""
    from slime_testing.models import write_checkpoint

    write_checkpoint(EXPERTS, tmp_path, dtype=torch.bfloat16)
    [(before, after, expected)] = run_ranks(publish_around, 1, tmp_path)
    assert after.keys() == expected.keys()
    assert all(torch.equal(after[name], expected[name]) for name in expected)
    experts = [name for name in expected if ".experts." in name]
    assert sum(not torch.equal(before[name], after[name]) for name in experts) > len(experts) / 2


def save_without_gradients(rank: Rank, model: Path, folder: Path) -> tuple[float, float]:
    """The loss of the step after a checkpoint that was saved with the gradients freed, and again after loading it."""
    trainer = start(rank, model, "cpu", {"bf16": True})
    step(trainer, 0)
    trainer.trim()
    trainer.save(folder)
    after = step(trainer, 1)["loss"]
    trainer.load(folder)
    return after, step(trainer, 1)["loss"]


def test_a_checkpoint_needs_no_gradients(model: Path, tmp_path: Path) -> None:
    [(after, again)] = run_ranks(save_without_gradients, 1, model, tmp_path)
    assert again == after
