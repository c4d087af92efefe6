"""The trainer on GPUs: its log-probs, its layouts over NCCL, bf16 against fp32, Adam on the CPU.

Ranks of fp32 models differ only in the order of sums, as on a CPU; Adam's first steps divide by moments that are
almost zero, which eps=1e-6 keeps from magnifying that. bf16 rounds every activation to 8 bits.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slime_testing.ranks import Rank, run_ranks

MODELS = Path(__file__).parents[3] / "models"
FP32_TOLERANCE, BF16_TOLERANCE = {"rel": 1e-4, "abs": 2e-5}, {"rel": 0.05, "abs": 0.02}
TP, PP, CP, EP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
LAYOUTS = {
    2: {"tp2": {TP: 2}, "pp2": {PP: 2}, "cp2": {CP: 2}, "dp2": {}, "ep2": {EP: 2}, "tp2-ep2": {TP: 2, EP: 2}},
    4: {"tp2-pp2-ep2": {TP: 2, PP: 2, EP: 2}, "tp2-cp2": {TP: 2, CP: 2}, "cp2-dp2-ep2": {CP: 2, EP: 2}},
}
IN_BF16 = ("tp2-ep2", "cp2", "tp2-pp2-ep2", "tp2-cp2")
"""Layouts that run in this precision too; together they hold every kind of parallelism."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with experts; its first layer is dense."""
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("moe")
    write_checkpoint(json.loads((MODELS / "glm4/tests/configs/moe.json").read_text()), folder)
    return folder


@pytest.fixture(scope="module")
def one_gpu(model: Path) -> dict[str, Any]:
    """Histories of one rank: on the CPU, and on the GPU in both precisions, with single and grouped experts."""
    runs = {"fp32": {"bf16": False}, "bf16": {}, "bf16-single": {"moe_grouped_gemm": False}}
    found = run_ranks(histories, 1, "cuda", model, runs, timeout_s=200)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return found | run_ranks(histories, 1, "cpu", model, {"cpu": {}}, timeout_s=200)[0]


def histories(rank: Rank, device: str, model: Path, layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Metrics of three steps under each layout. What a rank logs is shown should it fail or be late."""
    found = {}
    for name, layout in layouts.items():
        start = time.perf_counter()
        found[name] = train(rank, device, model, layout)[1]
        logging.warning("%s: %.1f s", name, time.perf_counter() - start)
        rank = next_rank(rank)
    return found


def next_rank(rank: Rank) -> Rank:
    """The group is taken down; the next one meets elsewhere."""
    dist.barrier()  # nobody takes it down while another still talks
    dist.destroy_process_group()
    return rank.again()


def metrics(values: dict[str, float]) -> dict[str, float]:
    return {name: values[name] for name in ("loss", "pg_loss", "kl", "entropy", "grad_norm", "approx_kl")}


def train(rank: Rank, device: str, model: Path, megatron: dict[str, Any]) -> tuple[Any, list[dict[str, float]]]:
    """A trainer and its metrics of three steps."""
    trainer = new_trainer(rank, device, model, megatron)
    return trainer, steps(trainer, range(3))


def new_trainer(
    rank: Rank, device: str, model: Path, megatron: dict[str, Any], optimizer: dict[str, Any] | None = None
) -> Any:
    from slime.config.schema import Device, SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.cluster.device, cfg.run.num_steps = Device(device), 9
    cfg.model.family, cfg.model.path = json.loads((model / "config.json").read_text())["model_type"], str(model)
    cfg.train.megatron, cfg.train.logprob_chunk_tokens = dict(megatron), 32
    cfg.train.optimizer = {"lr": 1e-3, "adam_eps": 1e-6, "weight_decay": 0.1} | (optimizer or {})
    cfg.algo.kl_coef, cfg.algo.entropy_coef, cfg.algo.rollout_logprobs_as_old = 0.1, 0.01, True
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    return trainer


def steps(trainer: Any, numbers: Iterable[int]) -> list[dict[str, float]]:
    from slime.train.packing import pack
    from slime_testing.recorded import recorded_samples

    batches = pack(
        recorded_samples(24, trainer.hf["vocab_size"]),
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=128,
        loss_mean=trainer.cfg.algo.loss_mean,
        micro_batch_multiple=trainer.micro_batch_multiple,
    )
    return [metrics(trainer.train(batches, number, "rl")) for number in numbers]


@pytest.mark.gpu
def test_fp32_equals_the_cpu(one_gpu: dict[str, Any]) -> None:
    for got, wanted in zip(one_gpu["fp32"], one_gpu["cpu"], strict=True):
        assert got == pytest.approx(wanted, **FP32_TOLERANCE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bf16", "bf16-single"])
def test_bf16_is_close_to_fp32(name: str, one_gpu: dict[str, Any]) -> None:
    assert one_gpu[name][0] == pytest.approx(one_gpu["fp32"][0], **BF16_TOLERANCE)


@pytest.fixture(
    scope="module", params=[pytest.param(2, marks=pytest.mark.gpu(2)), pytest.param(4, marks=pytest.mark.gpu(4))]
)
def several_gpus(request: pytest.FixtureRequest, model: Path) -> list[dict[str, Any]]:
    """Histories of each rank under all layouts for so many GPUs, in one start of the processes."""
    layouts = LAYOUTS[request.param]
    runs = {name: layout | {"bf16": False} for name, layout in layouts.items()}
    runs |= {f"{name} bf16": layouts[name] for name in IN_BF16 if name in layouts}
    return run_ranks(histories, request.param, "cuda", model, runs, timeout_s=270)


@pytest.mark.timeout(400)
def test_layouts_over_nccl_equal_one_gpu(several_gpus: list[dict[str, Any]], one_gpu: dict[str, Any]) -> None:
    for name, history in several_gpus[0].items():
        assert all(of_rank[name] == history for of_rank in several_gpus), f"{name}: ranks report different metrics"
        if not name.endswith("bf16"):
            for got, wanted in zip(history, one_gpu["fp32"], strict=True):
                assert got == pytest.approx(wanted, **FP32_TOLERANCE), name


@pytest.mark.timeout(400)
def test_layouts_in_bf16(several_gpus: list[dict[str, Any]], one_gpu: dict[str, Any]) -> None:
    histories = {name: history for name, history in several_gpus[0].items() if name.endswith("bf16")}
    assert histories, "every number of GPUs has some"
    for name, history in histories.items():
        assert history[0] == pytest.approx(one_gpu["bf16"][0], **BF16_TOLERANCE), name


@pytest.mark.gpu(2)
@pytest.mark.timeout(400)
def test_sparse_attention_over_nccl_equals_one_gpu(tmp_path: Path) -> None:
    """Ranks trade heads for tokens (`tp2`) and gather latents (`cp2`)."""
    from slime_testing.models import write_checkpoint

    # So many index heads that no two scores are equal: of equal ones it is open on CUDA which is chosen.
    hf = json.loads((MODELS / "glm5/tests/configs/dsa.json").read_text()) | {"index_n_heads": 32}
    write_checkpoint(hf, tmp_path)
    [alone] = run_ranks(histories, 1, "cuda", tmp_path, {"alone": {"bf16": False}}, timeout_s=200)
    layouts = {"tp2": {TP: 2, "bf16": False}, "cp2": {CP: 2, "bf16": False}}
    for found in run_ranks(histories, 2, "cuda", tmp_path, layouts, timeout_s=200):
        for name in layouts:
            for got, wanted in zip(found[name], alone["alone"], strict=True):
                assert got == pytest.approx(wanted, **FP32_TOLERANCE), name


@pytest.mark.gpu
def test_shared_prompts_change_neither_metrics_nor_gradients(tmp_path: Path) -> None:
    """In fp32 sums are taken in another order; in bf16 flash attention rounds the gradient of a key once a sample
    instead of once."""
    from slime_testing.models import write_checkpoint

    from .one_rank import HF

    write_checkpoint(HF, tmp_path)
    [found] = run_ranks(by_sharing, 1, "cuda", tmp_path, timeout_s=200)
    for precision, tolerance, off in (("fp32", FP32_TOLERANCE, 1e-5), ("bf16", BF16_TOLERANCE, 0.03)):
        whole, shared, distance = found[precision]
        assert shared == pytest.approx(whole, **tolerance), precision
        assert distance < off, precision


def by_sharing(rank: Rank, device: str, model: Path) -> dict[str, Any]:
    """Metrics of groups of attempts, whole and behind one copy of what they share, and the gradients' distance."""
    from slime_testing.recorded import recorded_samples
    from slime_testing.sharing import GROUP, NUM_GROUPS, of_tries

    from .one_rank import packed

    found = {}
    for precision, bf16 in (("fp32", False), ("bf16", True)):
        trainer = new_trainer(rank, device, model, {"bf16": bf16})
        trainer.optimizer.megatron.step = lambda: (True, 0.0, None)  # the weights stay, only the packing changes
        groups, values, gradients = of_tries(recorded_samples(NUM_GROUPS * GROUP, trainer.hf["vocab_size"])), [], []
        samples = [sample for group in groups for sample in group]
        for share in (False, True):
            values.append(metrics(trainer.train(packed(trainer, samples, share_below=float(share)), 0, "rl")))
            gradients.append(torch.cat([x.grad_data.flatten() for part in trainer.model.chunks for x in part.buffers]))
        distance = (gradients[0] - gradients[1]).norm() / gradients[0].norm()
        found[precision] = (*values, float(distance))
        rank = next_rank(rank)
    return found


@pytest.mark.gpu
def test_adam_on_the_cpu_takes_the_steps_of_the_device(model: Path, tmp_path: Path) -> None:
    [found] = run_ranks(adam_on_both, 1, model, tmp_path, timeout_s=200)
    for got, wanted in zip(found["cpu"], found["device"], strict=True):
        assert got == pytest.approx(wanted, **BF16_TOLERANCE)
    # Three steps of 1e-3: entries whose gradient is all rounding may go either way.
    assert found["weights"] < 1e-2
    assert found["loaded"] == 0
    # A resumed run goes on as the other does: without its moments it would end up as far away as it goes in two steps.
    assert found["resumed"] < 0.1


def adam_on_both(rank: Rank, model: Path, folder: Path) -> dict[str, Any]:
    offload = {"optimizer_cpu_offload": True}
    device_trainer, device = train(rank, "cuda", model, {})
    wanted = {name: tensor.clone() for name, tensor in device_trainer.export()}
    del device_trainer
    rank = next_rank(rank)
    trainer = new_trainer(rank, "cuda", model, {}, offload)
    cpu = steps(trainer, range(3))
    differences = [_distance(tensor, wanted[name]) for name, tensor in trainer.export()]
    trainer.save(folder)
    saved = weights(trainer)
    steps(trainer, (3, 4))
    went_on = weights(trainer)
    del trainer
    resumed = new_trainer(next_rank(rank), "cuda", model, {}, offload)
    resumed.load(folder)
    loaded = (weights(resumed) != saved).sum()
    steps(resumed, (3, 4))
    off = (weights(resumed) - went_on).norm() / (went_on - saved).norm()
    dist.destroy_process_group()
    found = {"loaded": int(loaded), "resumed": float(off), "weights": max(differences)}
    return {"cpu": cpu, "device": device} | found


def weights(trainer: Any) -> torch.Tensor:
    """All of them, in a row, on the host."""
    return torch.cat([tensor.float().cpu().view(-1) for _, tensor in trainer.export()])


def _distance(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())
