"""What `slime plan` says about memory."""

from __future__ import annotations

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime_tools.memory.trainer import GIB


@pytest.mark.parametrize(
    ("model", "cluster", "most"),
    [
        ("glm5.2", "h100x256", 70),
        ("deepseek-r1", "h100x128", 66),
        ("glm4.5-355b-a32b", "h100x64", 66),
        ("glm4.5-fp8", "h100x64", 68),
        ("glm4.7-flash", "h100x8", 66),
        ("glm4-9b", "h100x8", 66),
        ("glm4-9b", "h100x8-split", 74),
    ],
)
def test_the_proven_recipes_fit(model: str, cluster: str, most: float) -> None:
    plan = plan_of(f"+model={model}", f"+cluster={cluster}")
    assert plan.device_bytes is not None
    assert plan.host_bytes is not None
    fullest = max(place.table.total(place.table.peak) for place in plan.devices)
    assert 55 * GIB < fullest < most * GIB < plan.device_bytes
    assert all(place.table.total(place.table.peak) < plan.host_bytes for place in plan.hosts)


def test_a_drafting_layer_that_learns_keeps_the_keys_that_its_own_indexer_chooses() -> None:
    """2,048 keys of 4 bytes for each of a rank's tokens, as in every layer with an indexer."""
    plan = plan_of("+model=glm5.2", "+cluster=h100x256", "train.mtp_loss_scale=0.2")
    drafting, tokens = plan.trainers[-1].layers[-1], 65_536 / 8 / 4
    assert drafting.lasting == 4 * 2048 * tokens


def test_a_drafting_layer_that_learns_takes_a_second_chunk_of_logits() -> None:
    """That of the main loss is kept while the layer runs. 154,880 words over four ranks, in bf16."""
    words = ["+model=glm5.2", "+cluster=h100x256", "train.logprob_chunk_tokens=1024"]
    frozen, learns = (plan_of(*words, *more).trainers[-1].head for more in ([], ["train.mtp_loss_scale=0.2"]))
    assert learns[0] == 2 * frozen[0]
    assert learns[1] - frozen[1] == 2 * 1024 * 154_880 / 4


def test_logits_in_fp32_cost_trainers_and_engines() -> None:
    """GLM-4-9B: 151,552 words over two ranks. A chunk takes 4 bytes a logit and 2 for its gradient in bf16, where it
    took 2; an engine has the output layer of 4,096 columns in fp32 twice, in CUDA graphs and beside them."""
    words = ("+model=glm4-9b", "+cluster=h100x8-split", "train.logprob_chunk_tokens=1024")
    plan, off = plan_of(*words, "model.fp32_lm_head=true"), plan_of(*words)
    tp, (engine,), (before,) = plan.grid.tp, plan.engines.values(), off.engines.values()
    assert plan.trainers[-1].head[0] == off.trainers[-1].head[0]
    assert plan.trainers[-1].head[1] - off.trainers[-1].head[1] == 4 * 1024 * 151_552 / tp
    assert engine.workspace - before.workspace == 2 * 4 * 151_552 * 4096 / engine.group.tp


def test_deltas_cost_a_version_of_host_memory_at_both_ends() -> None:
    """GLM-4-9B in bf16: at the publisher, and at each engine beside it."""
    words = ("+model=glm4-9b", "+cluster=h100x8-split", "weights.transport=disk")
    plan, full = plan_of(*words), plan_of(*words, "weights.full_every=1")
    engines = len(plan.topology.engines)
    (kept,) = set(plan.hosts[0].table.rows["kept versions"].values())
    assert kept == 18_800_558_080 * (1 + engines)
    assert "kept versions" not in full.hosts[0].table.rows


def test_what_engines_note_of_tokens_is_in_host_memory() -> None:
    """GLM-4.7-Flash: a byte for each of 4 experts in 46 layers, of every token of the pools of a host."""
    words = ("+model=glm4.7-flash", "+cluster=h100x8", "rollout.sglang.speculative_algorithm=null")
    plan, off = plan_of(*words, "train.routing_replay=true"), plan_of(*words)
    (rank,) = plan.engines.values()
    assert rank.pool_tokens is not None
    assert set(plan.hosts[0].table.rows["recorded tokens"].values()) == {8 * rank.pool_tokens * 46 * 4}
    assert "recorded tokens" not in off.hosts[0].table.rows
