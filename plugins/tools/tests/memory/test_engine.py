"""Engine ranks: weights, token pools and buffers, against the figures that SGLang's sources give for the recipes."""

from __future__ import annotations

import dataclasses

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime_tools.memory.engine import EngineRank
from slime_tools.memory.trainer import GIB, Phase


def rank_of(recipe: str, group: str = "default", *more: str) -> EngineRank:
    model, cluster = recipe.split("@")
    return plan_of(f"+model={model}", f"+cluster={cluster}", *more).engines[group]


def test_weights_of_a_rank() -> None:
    """Of the sparse model 11.3 GB are experts, 13.6 attention, 2.3 absorbed projections, 2.8 shared experts, 3.8
    embeddings and head, 34 to 35 in all; the one with DP 8 of TP 64 has 16.5 GB; 9.4 G parameters in bf16 over two."""
    assert rank_of("glm5.2@h100x256", "decode").weight_bytes / 1e9 == pytest.approx(34.5, abs=0.5)
    undrafted = rank_of("deepseek-r1@h100x128", "default", "rollout.sglang.speculative_algorithm=null")
    assert undrafted.weight_bytes / 1e9 == pytest.approx(16.5, rel=0.05)
    assert rank_of("glm4-9b@h100x8").weight_bytes / 1e9 == pytest.approx(9.4, rel=0.01)


@pytest.mark.parametrize(
    ("recipe", "group", "kib"),
    [
        ("glm5.2@h100x256", "decode", 60.8),
        ("deepseek-r1@h100x128", "default", 69.75),
        ("glm4.5-355b-a32b@h100x64", "default", 46.0),
        ("glm4.5-fp8@h100x64", "default", 368.0),
        ("glm4-9b@h100x8", "default", 20.0),
    ],
)
def test_bytes_of_a_token(recipe: str, group: str, kib: float) -> None:
    """Latents 1,152 B a layer in bf16 and 656 in FP8, index keys 132 in every layer; drafting adds a layer."""
    rank = rank_of(recipe, group)
    assert rank.pool_tokens is not None
    assert rank.pool_bytes / rank.pool_tokens / 1024 == pytest.approx(kib, abs=0.06)


def test_the_pool_takes_what_the_fraction_leaves() -> None:
    rank = rank_of("glm4-9b@h100x8")
    assert rank.device_bytes is not None
    assert rank.pool_bytes + rank.weight_bytes == pytest.approx(0.7 * (rank.device_bytes - rank.context), rel=1e-5)
    limited = dataclasses.replace(
        rank, group=dataclasses.replace(rank.group, sglang={**rank.group.sglang, "max_total_tokens": 5000})
    )
    assert limited.pool_tokens == 5000


def test_latents_in_fp8_take_more_than_their_pool_is_sized_for() -> None:
    rank = rank_of("glm5.2@h100x256", "decode")
    assert rank.device_bytes is not None
    granted = 0.7 * (rank.device_bytes - rank.context) - rank.weight_bytes
    assert rank.pool_bytes / granted == pytest.approx(788 / 708, rel=1e-3)


def test_dispatch_buffers() -> None:
    """`low_latency` with 64 tokens 0.76 GiB, and no buffers of the normal kernels."""
    assert rank_of("glm5.2@h100x256", "decode").deepep / GIB == pytest.approx(0.77, abs=0.02)
    assert rank_of("glm4-9b@h100x8").deepep == 0


def test_what_stays_while_a_colocated_trainer_works() -> None:
    rank = rank_of("glm5.2@h100x256", "decode")
    rows = rank.on_device(bucket=0).rows
    assert rows["KV cache"][Phase.train] == rank.unreleased_bytes
    assert rows["KV cache"][Phase.generate] == rank.pool_bytes
    assert Phase.train not in rows["engine's weights"]
    assert rows["DeepEP buffers"][Phase.train] == rows["DeepEP buffers"][Phase.generate] > 0
