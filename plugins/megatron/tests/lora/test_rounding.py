"""In bf16 trainers compute with the rounded sum that engines hold, and adapters learn as if it were not rounded."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slime.config.keys import default_config
from slime_megatron.lora import layers
from slime_megatron.train.model.linear import ReplicatedLinear, whole_weight
from slime_megatron.train.weights.save_hf import save_hf
from slime_testing.contract import Contract
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

CONFIGS = Path(__file__).parents[3] / "models"
MODELS = ["qwen2/tests/configs/untied.json", "glm4/tests/configs/dense.json", "glm4/tests/configs/lite.json"]
RANK, SCALE = 4, 1.5
IN_ONE_CALL = {"moe_grouped_gemm": True}


def adapted(*, beside: bool = False) -> Any:
    """A layer of two targets and three rows that have no adapter, B far enough from zero for the sum to be rounded."""
    config = SimpleNamespace(
        params_dtype=torch.bfloat16, use_cpu_initialization=True, perform_initialization=True, sequence_parallel=False
    )
    layer = ReplicatedLinear(24, 19, config=config, init_method=lambda x: torch.nn.init.normal_(x, std=0.05))  # type: ignore[arg-type]
    layer.weight.requires_grad_(False)
    rows = {"q": torch.arange(8), "k": torch.arange(11, 19)}
    device = torch.device("cpu")
    parts = [layers.Part(name, at, torch.randn(RANK, 24).bfloat16(), device, False) for name, at in rows.items()]
    layers.adapt(layer, parts, SCALE, beside=beside)
    for up in layer.lora_B.values():
        torch.nn.init.normal_(up, std=0.003)
    return layer


def test_a_layer_computes_with_what_is_published_and_learns_as_if_nothing_were_rounded() -> None:
    torch.manual_seed(0)
    layer, x = adapted(), torch.randn(5, 2, 24, dtype=torch.bfloat16, requires_grad=True)
    whole = whole_weight(layer).detach()
    assert not torch.equal(whole, layer.weight)
    output, _ = layer(x)
    assert torch.equal(output, F.linear(x, whole))
    gradient = torch.randn_like(output)
    output.backward(gradient)
    assert torch.equal(x.grad, gradient @ whole)  # type: ignore[arg-type]
    flat, rows = gradient.double().flatten(0, 1), x.detach().double().flatten(0, 1)
    for name, at in (("q", slice(0, 8)), ("k", slice(11, 19))):
        down, up = (getattr(layer, side)[name] for side in ("lora_A", "lora_B"))
        of_up = SCALE * flat[:, at].t() @ (rows @ down.detach().double().t())
        of_down = SCALE * (flat[:, at] @ up.detach().double()).t() @ rows
        for parameter, wanted in ((up, of_up), (down, of_down)):
            assert (parameter.grad.double() - wanted).norm() <= 0.01 * wanted.norm(), name


def test_beside_a_weight_nothing_is_rounded_to_it() -> None:
    """What an engine computes that gets the adapters as they are, in its order."""
    torch.manual_seed(0)
    layer, x = adapted(beside=True), torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True)
    output, _ = layer(x)
    low = F.linear(x, layer.down()) * SCALE
    assert torch.equal(output, F.linear(x, layer.weight) + F.linear(low, layer.up()))
    gradient = torch.randn_like(output)
    output.backward(gradient)
    exact = layer.weight.double() + SCALE * layer.up().double() @ layer.down().double()
    wanted = gradient.double() @ exact.detach()
    assert x.grad is not None
    assert (x.grad.double() - wanted).norm() <= 0.01 * wanted.norm()


def test_the_sum_is_not_kept_for_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []

    def seen(layer: Any) -> Tensor:
        whole = whole_weight(layer)
        made.append(weakref.ref(whole))
        return whole

    monkeypatch.setattr(layers, "whole_weight", seen)
    layer = adapted()
    output, _ = layer(torch.randn(5, 24, dtype=torch.bfloat16, requires_grad=True))
    assert [ref() for ref in made] == [None]
    assert isinstance(layer.weight, torch.nn.Parameter)
    output.sum().backward()
    assert [ref() for ref in made] == [None, None], "made again for the gradient of x, and dropped again"


def start(rank: Rank, family: str, folder: Path, megatron: Mapping[str, Any], *, lora: bool) -> Any:
    from slime_megatron.train.trainer import Trainer

    cfg: Any = default_config()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, str(folder), 4
    cfg.train.megatron, cfg.train.optimizer = {"bf16": True, **megatron}, {"lr": 1e-3}
    cfg.sft.lr, cfg.sft.num_steps, cfg.train.lora.rank = 1e-3, 4, RANK if lora else None
    cfg.train.lora.expert_rank = 2 if lora and "glm4_moe" in family else None
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    return trainer


def merged_and_adapted(
    rank: Rank, family: str, folder: Path, merged: Path, megatron: Mapping[str, Any]
) -> list[list[Tensor]]:
    """Log-probs of a model with adapters that some steps have moved, and of the model that it publishes."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.train.packing import pack
    from slime_megatron.train.step import score

    def scored(trainer: Any) -> list[Tensor]:
        with cpu_stands_in_for_cuda():
            return [x for batch in batches for x in score(trainer.model, trainer._local(batch))]

    trainer = start(rank, family, folder, megatron, lora=True)
    samples = recorded_samples(8, trainer.hf["vocab_size"])
    batches = pack(samples, num_dp=1, align=1, max_tokens=512, loss_mean=trainer.cfg.algo.loss_mean)
    for step in range(3):
        trainer.train(batches, step, "sft")
    save_hf(trainer.export(), folder, merged)
    ours = scored(trainer)
    rank = rank.again()
    torch.distributed.destroy_process_group()
    return [ours, scored(start(rank, family, merged, megatron, lora=False))]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "megatron"), [*((config, {}) for config in MODELS), (MODELS[-1], IN_ONE_CALL)])
def test_log_probs_are_those_of_the_model_that_is_published(
    config: str, megatron: dict[str, Any], tmp_path: Path
) -> None:
    model = Contract(json.loads((CONFIGS / config).read_text()))
    [[ours, published]] = run_ranks(merged_and_adapted, 1, model.family, model.folder, tmp_path / "merged", megatron)
    assert len(ours) == len(published) > 0
    for one, other in zip(ours, published, strict=True):
        assert torch.equal(one, other)
