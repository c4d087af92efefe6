"""Where samples share the rows of their prompt, a step is that of whole sequences: losses, gradients, experts' balance.

Each group has a micro-batch of its own both times, because the load balancing loss is one of a micro-batch
(Fedus et al. 2022, section 2.2), and `test_router.py` compares that of whole sequences with transformers'.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime_plugin_mixture_of_experts.replay import DIFFERS, REPLAYED, ROUTED_EXPERTS
from slime_testing import models
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import GRADIENT_TOLERANCE, TOLERANCES, record_gradients

from .replayed import drawn, routed_experts

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[3] / "models"
FAMILIES = {
    "softmax": CONFIGS / "qwen3/tests/configs/moe.json",
    "sigmoid": CONFIGS / "glm4/tests/configs/moe.json",
    "latent": CONFIGS / "deepseek-v3/tests/configs/tiny.json",
}
TP, PP, EP = (f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
EXPERTS = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
BALANCE = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.02}
ONE_RANK: Mapping[str, Any] = {"one rank": {}}
TWO_RANKS: Mapping[str, Any] = {
    "ep2": {EP: 2},
    "ep2 full recomputation": {EP: 2, **FULL},
    "pp2 recomputed experts": {PP: 2, **EXPERTS},
    "tp2 ep2": {TP: 2, EP: 2},
    "tp2 cut experts recomputed": {TP: 2, "expert_tensor_parallel_size": 2, **EXPERTS},
}
NUM_GROUPS, GROUP = 4, 4
Trained = tuple[dict[str, float], dict[str, np.ndarray], dict[str, torch.Tensor]]


def groups(vocab_size: int, recording: Any) -> list[list[Any]]:
    """The samples of each prompt, and nearly all their experts as engines record them: a prompt's are the same ones."""
    samples, generator, found = recorded_samples(NUM_GROUPS * GROUP, vocab_size), np.random.default_rng(3), []
    for first, *others in np.array_split(np.asarray(samples, dtype=object), NUM_GROUPS):
        prompt = first.tokens[: first.num_tokens - first.num_response_tokens]
        of_prompt, group = drawn(recording, len(prompt), generator), []
        of_prompt[1:3] = 0
        for sample in (first, *others):
            tokens = np.concatenate([prompt, sample.tokens[-sample.num_response_tokens :]])
            rows = np.concatenate([of_prompt, drawn(recording, sample.num_response_tokens - 1, generator)])
            group.append(dataclasses.replace(sample, tokens=tokens, recorded={ROUTED_EXPERTS: rows}))
        found.append(group)
    return found


def batch_of(trainer: Any, *, shared: bool) -> Any:
    """Each group in a micro-batch of its own."""
    from slime.config.schema import LossMean
    from slime.train.packing import pack

    options = {"num_dp": 1, "align": trainer.packing_align, "max_tokens": 4096, "loss_mean": LossMean.token}
    recording = routed_experts(trainer.model.traits)
    of_groups = groups(trainer.hf["vocab_size"], recording)
    batches = [pack(group, share_prompts=shared, **options)[0] for group in of_groups]
    micro_batches = [micro for batch in batches for [micro] in batch.micro_batches]
    assert all((micro.prefixes is not None) == shared and len(micro.sample_ids) == GROUP for micro in micro_batches)
    num_dp = trainer.data_parallel_size
    return dataclasses.replace(
        batches[0],
        micro_batches=tuple(tuple(micro_batches[rank::num_dp]) for rank in range(num_dp)),
        num_tokens=sum(batch.num_tokens for batch in batches),
        num_loss_tokens=sum(batch.num_loss_tokens for batch in batches),
    )


def train(rank: Rank, folder: Path, layouts: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Trained]]:
    """By layout: a step of whole sequences, and of those that share their prompt. Runs in every rank."""
    found: dict[str, list[Trained]] = {}
    for name, layout in layouts.items():
        found[name] = []
        for shared in (False, True):
            found[name].append(_train(rank, folder, layout, shared))
            rank = rank.again()
            torch.distributed.destroy_process_group()
    return found


def _train(rank: Rank, folder: Path, layout: Mapping[str, Any], shared: bool) -> Trained:
    from slime_plugin_megatron.trainer import Trainer

    hf = json.loads((folder / "config.json").read_text())
    cfg = models.run_config(hf["model_type"], folder, {})
    cfg.run.num_steps = 9
    has_bias = "n_routed_experts" in hf
    cfg.train.megatron = {**BALANCE, **layout, **({"moe_router_bias_update_rate": 0.01} if has_bias else {})}
    cfg.train.routing_replay, cfg.train.optimizer, cfg.algo.entropy_coef = True, {"lr": 1e-3}, 0.01
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    gradients = record_gradients(trainer)
    assert trainer.layout().shares_prompts  # on a CPU, where the model can
    values = trainer.train([batch_of(trainer, shared=shared).share(trainer.data_parallel_rank)], 0, "rl")
    biases = {name: bias.clone() for name, bias in trainer.export() if "correction_bias" in name}
    return values, gradients[0] if gradients else {}, biases


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for name, config in FAMILIES.items():
        folders[name] = tmp_path_factory.mktemp(name)
        models.write_checkpoint(json.loads(config.read_text()), folders[name])
    return folders


@pytest.mark.parametrize(
    ("name", "num_ranks", "layouts"),
    [("softmax", 1, ONE_RANK), ("latent", 1, ONE_RANK), ("sigmoid", 2, TWO_RANKS)],
)
def test_a_step_is_that_of_whole_sequences(
    name: str, num_ranks: int, layouts: Mapping[str, Any], checkpoints: dict[str, Path]
) -> None:
    """fp32: the sums of a few hundred terms run in another order, as between layouts. A prompt that counts once, not
    four times, changes the losses of routers by hundredths, and balance moves other experts."""
    results = run_ranks(train, num_ranks, checkpoints[name], layouts, timeout_s=200)
    for layout in layouts:
        for result in results:
            (wanted, _, biases), (values, _, moved) = result[layout]
            differing = {each for each in wanted if each.startswith("seconds/")}
            assert {"load_balancing_loss", "z_loss", REPLAYED, DIFFERS} < wanted.keys()
            assert values.keys() == wanted.keys()
            for metric in wanted.keys() - differing:
                tolerance = TOLERANCES["maximum" if metric.endswith("_max") else "mean"]
                assert values[metric] == pytest.approx(wanted[metric], rel=tolerance, abs=tolerance), (layout, metric)
            assert moved.keys() == biases.keys()
            assert all(torch.equal(moved[each], bias) and bias.any() for each, bias in biases.items())
        (_, gradients, biases), (_, shared, _) = results[0][layout]
        assert bool(biases) == (name != "softmax")
        assert shared.keys() == gradients.keys()
        assert len(gradients) > 20
        for each, gradient in gradients.items():
            error = np.abs(shared[each] - gradient).max() / (np.abs(gradient).max() or 1.0)
            assert error <= GRADIENT_TOLERANCE, f"{layout}: the gradient of {each} is off by {error:.1e}"
