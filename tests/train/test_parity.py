"""Every parallel layout computes what one rank computes: losses, gradient norms and each parameter's gradient.

All layouts start from the same HF checkpoint and train three steps on the same recorded rollout, with clipping, KL
penalty and entropy bonus, in fp32. Differences are sums taken in another order:
- metrics: sums of a few hundred terms of order 1 at 6e-8 relative each;
- gradients: the same over a backward pass of four layers; measured against the largest entry of the parameter's
  gradient, because entries that cancel to almost nothing have no digits left;
- steps two and three start from weights that Adam moved by the sign of gradients; eps=1e-6 keeps those that are
  almost zero from being pushed by rounding alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.testing.ranks import Rank, run_ranks

METRICS_TOLERANCE = 2e-6
GRAD_NORM_TOLERANCE = 3e-6
GRADIENT_TOLERANCE = 2e-5
NUM_STEPS = 3

TP, PP, VPP, CP, EP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)

RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OVERLAP = "dp2-overlap"
"""Data parallel, with the gradients' reduction under way during the last backward pass."""

DENSE_TWO = {"tp2": {TP: 2}, "pp2": {PP: 2}, "cp2": {CP: 2}, "dp2": {}, OVERLAP: {}, "dp2-recompute": RECOMPUTE}
MOE_TWO = {
    "tp2": {TP: 2},
    "tp2-ep2": {TP: 2, EP: 2},
    "pp2": {PP: 2},
    "pp2-vpp2": {PP: 2, VPP: 2},
    "cp2": {CP: 2},
    "dp2": {},
    "ep2": {EP: 2},
}
MOE_FOUR = {"tp2-pp2": {TP: 2, PP: 2}, "cp2-dp2-ep2": {CP: 2, EP: 2}, "tp2-cp2-ep4": {TP: 2, CP: 2, EP: 4}}

HF_BASE = {
    "attention_bias": True,
    "head_dim": 16,
    "hidden_size": 64,
    "initializer_range": 0.05,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": 96,
}
HF = {
    "glm4": HF_BASE | {"model_type": "glm4"},
    "glm4_moe": HF_BASE
    | {
        "model_type": "glm4_moe",
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "routed_scaling_factor": 1.0,
        "topk_group": 1,
        "use_qk_norm": True,
    },
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from slime.testing.models import write_checkpoint

    folders = {family: tmp_path_factory.mktemp(family) for family in HF}
    for family, folder in folders.items():
        write_checkpoint(HF[family], folder)
    return folders


@pytest.fixture(scope="module")
def one_rank(checkpoints: dict[str, Path]) -> dict[str, Any]:
    """By family, what a single rank computes."""
    return {
        family: run_ranks(train, 1, family, folder, {"one": {}})[0]["one"] for family, folder in checkpoints.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "num_ranks", "layouts"),
    [("glm4", 2, DENSE_TWO), ("glm4_moe", 2, MOE_TWO), ("glm4_moe", 4, MOE_FOUR)],
    ids=["dense-2", "moe-2", "moe-4"],
)
def test_layouts_equal_one_rank(
    family: str, num_ranks: int, layouts: dict[str, Any], checkpoints: dict[str, Path], one_rank: dict[str, Any]
) -> None:
    results = run_ranks(train, num_ranks, family, checkpoints[family], layouts)
    for layout in layouts:
        histories = [result[layout]["history"] for result in results]
        assert all(history == histories[0] for history in histories), f"{layout}: ranks report different metrics"
        compare_histories(layout, histories[0], one_rank[family]["history"])
        compare_gradients(layout, results[0][layout]["gradients"], one_rank[family]["gradients"])


def compare_histories(layout: str, got: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    for step, (values, reference) in enumerate(zip(got, wanted, strict=True)):
        for name in reference:
            scale = reference[name] if name == "grad_norm" else 1.0
            limit = GRAD_NORM_TOLERANCE if name == "grad_norm" else METRICS_TOLERANCE
            difference = abs(values[name] - reference[name]) / scale
            assert difference <= limit, f"{layout} step {step} {name}: {values[name]} instead of {reference[name]}"


def compare_gradients(layout: str, got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    for step, (gradients, reference) in enumerate(zip(got, wanted, strict=True)):
        assert gradients.keys() == reference.keys()
        for name, gradient in gradients.items():
            error = np.abs(gradient - reference[name]).max() / np.abs(reference[name]).max()
            assert error <= GRADIENT_TOLERANCE, f"{layout} step {step}: gradient of {name} is off by {error:.1e}"


def train(rank: Rank, family: str, folder: Path, layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Runs in every rank: all layouts, one after another."""
    return {
        name: train_layout(
            rank._replace(master_port=rank.master_port + number), family, folder, layout, overlap=name == OVERLAP
        )
        for number, (name, layout) in enumerate(layouts.items())
    }


def train_layout(rank: Rank, family: str, folder: Path, layout: dict[str, Any], *, overlap: bool) -> dict[str, Any]:
    from slime.config.schema import SlimeConfig
    from slime.testing.recorded import recorded_samples
    from slime.train.packing import pack
    from slime.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, str(folder), NUM_STEPS
    cfg.train.megatron, cfg.train.logprob_chunk_tokens = layout, 32
    cfg.train.ddp = {"overlap_grad_reduce": overlap}
    cfg.train.optimizer = {"lr": 1e-3, "adam_eps": 1e-6, "weight_decay": 0.1}
    cfg.algo.kl_coef, cfg.algo.entropy_coef, cfg.algo.rollout_logprobs_as_old = 0.1, 0.01, True
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    gradients = record_gradients(trainer)
    batches = pack(
        recorded_samples(24, HF_BASE["vocab_size"]),
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=128,
        loss_mean=cfg.algo.loss_mean,
        micro_batch_multiple=trainer.micro_batch_multiple,
    )
    history = [trainer.train_rl(batches, step) for step in range(NUM_STEPS)]
    torch.distributed.destroy_process_group()
    seconds_and_padding = ("seconds/logprobs", "seconds/train", "num_tokens")
    history = [{name: x for name, x in values.items() if name not in seconds_and_padding} for values in history]
    return {"history": history, "gradients": gradients}


def record_gradients(trainer: Any) -> list[dict[str, Any]]:
    """A list that gets every step's gradients, whole and by HF name, on rank 0, just before the optimizer's turn.

    The gradients are put in the parameters' place and exported, as the weights are.
    """
    recorded: list[dict[str, Any]] = []
    finalize = trainer.model.config.finalize_model_grads_func

    def finalize_and_record(chunks: Any, *args: Any, **kwargs: Any) -> None:
        finalize(chunks, *args, **kwargs)
        gather_shards(chunks)
        parameters = [parameter for module in trainer.model.modules for parameter in module.parameters()]
        before = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter in parameters:
                parameter.copy_(parameter.main_grad)
            recorded.append({name: tensor.numpy().copy() for name, tensor in trainer.export()})
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        for gradients in recorded[-1:]:  # the correction bias is a buffer: what was exported of it is no gradient
            for name in [name for name in gradients if "correction_bias" in name]:
                del gradients[name]

    trainer.model.config.finalize_model_grads_func = finalize_and_record
    return recorded


def gather_shards(chunks: Any) -> None:
    """The distributed optimizer leaves each data-parallel rank a reduced share of the gradients: share them all."""
    for chunk in chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            group = buffer.data_parallel_group
            for bucket in buffer.buckets:
                share = bucket.grad_data.view(group.size(), -1)[group.rank()].clone()
                torch.distributed.all_gather_into_tensor(bucket.grad_data, share, group=group)
