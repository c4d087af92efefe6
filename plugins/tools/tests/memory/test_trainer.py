"""The memory model of trainers against peaks that were measured on H200s, and its arithmetic."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime.layout import Grid
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import GIB, Phase, in_flight

FULL = [
    "train.megatron.recompute_granularity=full",
    "train.megatron.recompute_method=uniform",
    "train.megatron.recompute_num_layers=1",
]
CPU_ADAM = ["train.optimizer.optimizer_cpu_offload=true"]
CUT = ["+cluster=h200x1", "model.num_layers=12", "train.logprob_chunk_tokens=1024"]
TP2, PP2 = (
    [
        "+cluster=h200x2",
        f"train.megatron.tensor_model_parallel_size={tp}",
        f"train.megatron.pipeline_model_parallel_size={pp}",
    ]
    for tp, pp in ((2, 1), (1, 2))
)


def plan_of(*arguments: str) -> MemoryPlan:
    composed = examine(arguments)
    assert composed.problems == []
    assert isinstance(composed.memory, GpuMemory)
    return composed.memory.plan


@pytest.mark.parametrize(
    ("arguments", "tokens", "measured"),
    [
        (CUT, 8192, 76.0),
        ([*CUT, *FULL], 8192, 64.2),
        (CUT, 32768, 118.1),
        ([*CUT, *FULL], 32768, 71.1),
        ([*CUT, *CPU_ADAM], 8192, 34.8),
        ([*CUT, *CPU_ADAM], 32768, 76.9),
        (TP2, 4096, 90.7),
        (TP2, 8192, 102.1),
        (PP2, 4096, 101.9),
        (PP2, 8192, 124.8),
    ],
)
def test_peaks_of_the_dense_model(arguments: list[str], tokens: int, measured: float) -> None:
    """GiB that torch had allocated at most while training, `benchmarks/results/train-h200.md`. It promises one decimal
    place; 1 % is for cuBLAS workspaces and the small tensors that nobody counts."""
    whole = "train.share_prompts=false"
    plan = plan_of("+model=glm4-9b-trial", *arguments, whole, f"train.max_tokens_per_micro_batch={tokens}")
    predicted = max(trainer.allocated(Phase.train) for trainer in plan.trainers)
    assert predicted / GIB == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "keys", "measured"),
    [(2 * (2048 + 8 * 1024), 2 * 8 * 3072, 97.4), (512 + 8 * 1536, 8 * 2048, 83.9)],
)
def test_peaks_where_samples_share_prompts(
    rows: int, keys: int, measured: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the groups that fitted a pack then, in the table of `benchmarks/results/train-h200.md`: a plan assumes the
    most keys that packs may have."""
    monkeypatch.setattr("slime_tools.memory.memory_plan.KEYS_A_ROW", keys / rows)
    settings = [f"train.max_tokens_per_micro_batch={rows}", "train.share_prompts=true"]
    plan = plan_of("+model=glm4-9b-trial", *CUT, *settings)
    predicted = max(trainer.allocated(Phase.train) for trainer in plan.trainers)
    assert predicted / GIB == pytest.approx(measured, rel=0.01)


def test_what_a_trainer_moves_to_the_host() -> None:
    """51.65 GB moved and 14.76 GB freed, `benchmarks/results/offload-h200.md`."""
    [trainer] = plan_of("+model=glm4-9b-trial", *CUT).trainers
    assert (trainer.weights + trainer.optimizer) / 1e9 == pytest.approx(51.65, abs=0.01)
    assert trainer.gradients / 1e9 == pytest.approx(14.76, abs=0.01)


def test_adam_on_the_cpu_takes_what_the_device_is_spared() -> None:
    [trainer] = plan_of("+model=glm4-9b-trial", *CUT, *CPU_ADAM).trainers
    assert trainer.optimizer == 0
    adam = trainer.on_host(1).rows["Adam on the CPU"]
    assert adam[Phase.train] == 18 * trainer.held.learning


def test_a_bucket_of_weights_waits_to_be_quantised() -> None:
    [trainer] = plan_of("+model=glm4-9b-trial", *CUT).trainers
    [quantises] = plan_of("+model=glm4-9b-trial", *CUT, "rollout.fp8=block").trainers
    assert quantises.publishing - trainer.publishing == 1.5 * trainer.bucket, "and half of it as E4M3"


def test_copies_in_memory_are_of_two_hosts_where_there_are_two() -> None:
    """Each host's share of 14 bytes a parameter: on 8 devices all of it, on 16 half, and half of the other."""
    for cluster, sets in (("h100x8", 2 * 1.0), ("h100x16", 4 * 0.5)):
        words = ("+model=glm4-9b", f"+cluster={cluster}", "train.megatron.recompute_granularity=full")
        plan = plan_of(*words, "train.checkpoint.in_memory_every=1")
        num_parameters = sum(weight.numel for weight in plan.weights)
        assert plan.shared_memory == pytest.approx(14 * num_parameters * sets, rel=0.01)
        assert plan_of(*words).shared_memory == 0


def test_micro_batches_in_flight() -> None:
    assert [in_flight(Grid(4, pp=4), stage) for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(Grid(2, pp=2, vpp=2), 0) == (2 + 2 + 1) / 2


def test_a_critic_is_a_second_model_without_an_output_layer() -> None:
    alone, both = (plan_of("+model=glm4-9b-trial", *CUT, f"algo={name}") for name in ("grpo", "ppo"))
    hidden, vocabulary = both.model["hidden_size"], both.model["vocab_size"]
    parameters = alone.trainers[0].held.all - hidden * vocabulary + hidden
    before, after = (plan.trainers[0].on_device().rows for plan in (alone, both))
    added = {item: row[Phase.train] for item, row in after.items() if item not in before}
    wanted = {"critic's weights": 2, "critic's gradients": 4, "critic's optimizer": 12}
    assert added == {item: size * parameters for item, size in wanted.items()}
    assert {item: row for item, row in after.items() if item in before} == before


def test_a_critic_that_takes_turns_is_on_the_device_for_checkpoints_alone() -> None:
    options = ("+model=glm4-9b-trial", *CUT, "train.checkpoint.interval=5", "algo=ppo")
    beside, by_turns = (plan_of(*options, f"algo.critic.offload={value}").trainers[0] for value in ("false", "true"))
    held = beside.on_device().rows["critic's weights"][Phase.train]
    assert by_turns.on_device().rows["critic's weights"] == {Phase.save: held}
    assert "critic's gradients" not in by_turns.on_device().rows
    host = by_turns.on_host(1).rows
    assert host["critic's way out"][Phase.train] == sum(by_turns.of_critic.values()) - 2 * held
    assert host["trainers' way out"][Phase.train] == by_turns.weights + by_turns.optimizer
    assert beside.saved == by_turns.saved == 14 * (beside.owned + beside.owned_of_critic)
