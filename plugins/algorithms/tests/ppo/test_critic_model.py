"""The critic's model: its values, its precision, and what of the policy's model it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

from .test_critic import batches_of, numbers, start
from .tiny import EXPERTS, HF, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


def values_of_transformers(rank: Rank, model: Path) -> Any:
    """Values of one pack by a head of random weights, and the same head on the hidden states of transformers' class."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train.step import score
    from slime_testing.models import random_model

    trainer = start(rank, model)
    trainer.begin_critic("rl")
    head = trainer.critic.model.modules[0].output_layer.weight
    head.data = torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    local = trainer._local(batches_of(trainer, 1)[0])
    with cpu_stands_in_for_cuda():
        found = score(trainer.critic.model, local, replays=False)
    theirs, difference = random_model(HF).double(), 0.0
    for micro, values in zip(local, found, strict=True):
        lasts = micro.sequence_lengths.cumsum(0).tolist()
        for start_of, end in zip([0, *lasts], lasts, strict=False):
            with torch.no_grad():
                hidden = theirs.model(micro.tokens[:, start_of:end]).last_hidden_state[0]
            wanted = hidden @ head.double()[0]
            difference = max(difference, (values[0, start_of:end] - wanted).abs().max().item())
    return difference


def test_values_are_the_head_on_transformers_hidden_states(model: Path) -> None:
    [difference] = run_ranks(values_of_transformers, 1, model)
    assert difference < 1e-4, "fp32 against float64, sums of 32 products of order 1 behind two layers"


def in_bf16(rank: Rank, model: Path) -> Any:
    trainer = start(rank, model, {"bf16": True})
    trainer.begin_critic("rl")
    dtypes = {name: x.dtype for name, x in trainer.critic.model.modules[0].named_parameters()}
    values = trainer.train(batches_of(trainer, 1), 1, "rl")
    moved = trainer.critic.model.modules[0].output_layer.weight.abs().max().item()
    return dtypes, values, moved


def test_the_value_head_is_fp32_where_the_trunk_is_bf16(model: Path) -> None:
    [(dtypes, values, moved)] = run_ranks(in_bf16, 1, model)
    assert dtypes.pop("output_layer.weight") is torch.float32
    assert {*dtypes.values()} == {torch.bfloat16}
    assert values["critic_grad_norm"] > 0
    assert moved == pytest.approx(2 * 2e-3, rel=0.1), "two steps of Adam, each of the learning rate"


def train_layout(rank: Rank, model: Path, megatron: Mapping[str, Any]) -> list[dict[str, float]]:
    trainer = start(rank, model, megatron)
    trainer.begin_critic("rl")
    return [numbers(trainer.train(batches_of(trainer, step), step, "rl")) for step in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "megatron"),
    [
        (EXPERTS, {"expert_model_parallel_size": 2}),
        (EXPERTS, {"pipeline_model_parallel_size": 2}),
        ({"tie_word_embeddings": True}, {"pipeline_model_parallel_size": 2}),
        ({"num_hidden_layers": 4}, {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}),
    ],
    ids=["experts", "prediction layer on the last stage", "tied embeddings", "interleaved"],
)
def test_the_critic_of_other_models(changes: dict[str, Any], megatron: dict[str, Any], tmp_path: Path) -> None:
    """What stands behind the policy's last layer is not the critic's: prediction layers, tied embeddings."""
    from slime_testing.models import write_checkpoint

    write_checkpoint(HF | changes, tmp_path)
    [alone] = run_ranks(train_layout, 1, tmp_path, {})
    results = run_ranks(train_layout, 2, tmp_path, megatron, timeout_s=110)
    assert results[0] == results[1]
    for values, wanted in zip(results[0], alone, strict=True):
        for name, value in wanted.items():
            # A token may stand on a bound of the clip, on this side or that by the processor's rounding: one of forty.
            off = 0.025 if name.endswith("clip_fraction") else 1e-5
            assert name == "num_tokens" or values[name] == pytest.approx(value, rel=1e-5, abs=off), name
    assert abs(alone[-1]["critic_value_mean"]) > 1e-4
