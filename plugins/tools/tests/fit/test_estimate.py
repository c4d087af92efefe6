"""Estimated seconds against training that was measured on H200s, and the arithmetic of the parts.

`benchmarks/plan_beside_measured.py` has every run that was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plugins.tools.tests.memory.test_trainer import CPU_ADAM, CUT, FULL, PP2, TP2, plan_of
from slime.config.paths import resolve
from slime.layout import Grid
from slime.plan.flops import ForwardFlops
from slime_tools.fit.estimate import Layout, Rates, Work, training_seconds, work_of
from slime_tools.fit.generation import _exchange, _step, engine_seconds, generation_seconds, held_out_prompts
from slime_tools.publish.part import NETWORK

ONE, ALONE = Grid(1), {"num_layers": 12}
NOW = ["train.logprob_chunk_tokens=8192"]
"""The default since those rows that had 1,024."""


HBM, NVLINK = 3.0e12, 300e9
"""Bytes/s that an H100 reads of its own memory, and sends to one beside it."""


def seconds(words: list[str], grid: Grid, pack: int, sequence: int, packs: int, **layout: Any) -> dict[str, float]:
    plan = plan_of("+model=glm4-9b-trial", *words, f"train.max_tokens_per_micro_batch={pack}")
    trained = ForwardFlops(plan.model, plan.weights, sequence)
    work = Work(packs * pack // sequence * grid.dp, sequence)
    parts = training_seconds(work, trained, Layout.of(plan), plan.trainers)
    return {name: value for name, value in parts.items() if not name.startswith("moves")}  # the engines' part


@pytest.mark.parametrize(
    ("words", "grid", "pack", "sequence", "packs", "measured"),
    [
        (CUT, ONE, 8192, 2048, 4, 1.258),
        ([*CUT, *NOW], ONE, 8192, 2048, 4, 1.105),
        ([*CUT, *NOW], ONE, 32768, 2048, 4, 4.360),
        ([*CUT, *NOW, *FULL], ONE, 8192, 2048, 4, 1.384),
        ([*CUT, *FULL], ONE, 8192, 2048, 4, 1.556),
        (CUT, ONE, 32768, 2048, 4, 4.752),
        ([*CUT, *FULL], ONE, 32768, 2048, 4, 5.935),
        ([*CUT, *CPU_ADAM], ONE, 8192, 2048, 4, 3.628),
        ([*CUT, *CPU_ADAM], ONE, 32768, 2048, 4, 8.354),
        (CUT, ONE, 32768, 32768, 4, 7.208),
        (TP2, Grid(2, tp=2), 4096, 1024, 16, 4.548),
        (TP2, Grid(2, tp=2), 8192, 1024, 16, 7.405),
        (PP2, Grid(2, pp=2), 4096, 1024, 16, 3.745),
        (PP2, Grid(2, pp=2), 8192, 1024, 16, 7.156),
    ],
)
def test_measured_steps(words: list[str], grid: Grid, pack: int, sequence: int, packs: int, measured: float) -> None:
    """`benchmarks/results/train-h200.md` and `sitting-h200.md`."""
    assert sum(seconds(words, grid, pack, sequence, packs).values()) == pytest.approx(measured, rel=0.15)


def test_parts_of_a_pipeline() -> None:
    """1F1B with m micro-batches and p stages idles p - 1 of m + p - 1 turns."""
    parts = seconds([*PP2, *NOW], Grid(2, pp=2), 8192, 1024, 16)
    busy = parts["compute"]
    assert parts["pipeline bubble"] == pytest.approx(busy / 16)
    assert "recomputation" not in parts, "the backward pass finds the logits of a pack of 8,192"
    again = seconds([*PP2, *NOW, *FULL], Grid(2, pp=2), 8192, 1024, 16)
    head = 16 * 8192 * 2 * 151552 * 4096 / (0.65 * 989e12)
    assert again["recomputation"] == pytest.approx(again["compute"] / 3 - head), "the head is not computed again"


def test_flops_are_six_a_parameter_and_token() -> None:
    """As the papers count them: 6 a weight that a token meets. DeepSeek-R1 has 37 G active ones."""
    plan = plan_of("+model=deepseek-r1", "+cluster=h100x128")
    trained = ForwardFlops(plan.model, plan.weights, 0)
    embedding = 7168 * 129280
    assert (trained.stage(range(61), is_last=True) / 2 + embedding) / 1e9 == pytest.approx(37.6, abs=0.3)


def test_work_of_a_step() -> None:
    cfg = plan_of("+model=deepseek-r1", "+cluster=h100x128").cfg
    assert work_of(cfg) == Work(1024, (2048 + 32768) / 2, 4, 1, 2.0, 1, 1024, 8)


def test_engines_that_hold_more_sequences_need_fewer_turns() -> None:
    plan = plan_of("+model=deepseek-r1", "+cluster=h100x128")
    wide = plan_of("+model=deepseek-r1", "+cluster=h100x128", "rollout.sglang.dp_size=64")
    work = work_of(plan.cfg)
    narrow, broad = (
        generation_seconds(one.cfg.rollout, one.cfg.cluster, work, one.engines["default"]) for one in (plan, wide)
    )
    assert narrow is not None
    assert broad is not None
    assert narrow > 2 * broad


def test_a_rollout_waits_for_its_longest_response_unless_it_over_samples() -> None:
    """Half of all sequences are shorter than the mean; the longest of many is twice as long."""
    assert Work(3, 100).longest == 150
    assert Work(10**6, 100).longest == pytest.approx(200)
    plan = plan_of("+model=glm4-9b", "+cluster=h100x8")
    [rank] = plan.engines.values()
    work = work_of(plan.cfg)
    assert rank.sequences is not None
    assert rank.sequences * rank.group.num_engines >= work.sequences, "all run at once"
    waiting = generation_seconds(plan.cfg.rollout, plan.cfg.cluster, work, rank)
    steady = generation_seconds(
        plan.cfg.rollout, plan.cfg.cluster, dataclasses.replace(work, over_sampling=1 + 1e-9), rank
    )
    assert waiting is not None
    assert steady is not None
    assert 1.5 * steady < waiting < 2 * steady, "the last steps have less to read"


def test_weights_but_experts_are_read_whole_by_every_step() -> None:
    plan = plan_of("+model=glm4.5", "+cluster=h100x64")
    [rank] = plan.engines.values()
    others = rank.weight_bytes - rank.expert_bytes
    assert 0.03 < others / rank.weight_bytes < 0.3
    one = Work(rank.group.num_engines, 1.0)
    found = generation_seconds(plan.cfg.rollout, plan.cfg.cluster, one, rank)
    assert found is not None
    assert found > one.longest * others / HBM


def test_engines_over_hosts_wait_for_the_network() -> None:
    """A sum over the engine's devices passes the cards of its hosts twice."""
    inside, over = plan_of("+model=glm4-9b", "+cluster=h100x8"), plan_of("+model=glm4.5", "+cluster=h100x64")
    assert over.engines["default"].group.devices_per_engine == 32
    within = _exchange(inside.cfg.cluster, inside.engines["default"], 1000)
    assert within == pytest.approx(3e-5 + 2 * 4096 * 2 * 1000 / NVLINK)
    between = _exchange(over.cfg.cluster, over.engines["default"], 1000)
    volume = 5120 * 2 * 1000
    assert between == pytest.approx(3e-5 + 2 * 2.5e-5 + 2 * volume / NVLINK + 2 * volume * 3 / 4 / (8 * NETWORK))


def test_log_probs_are_forward_passes_of_all_packs() -> None:
    plan = plan_of("+model=glm4-9b", "+cluster=h100x8")
    assert work_of(plan.cfg).log_probs == 0, "one optimizer step: the old policy is that of the training pass"
    kl = plan_of("+model=glm4-9b", "+cluster=h100x8", "algo.kl_coef=0.1")
    assert work_of(kl.cfg).log_probs == 1
    trained, work = ForwardFlops(kl.model, kl.weights, 4608), work_of(kl.cfg)
    layout = Layout.of(kl)
    parts = training_seconds(work, trained, layout, kl.trainers)
    exchanged = parts["tensor parallel"] + parts["context parallel"]
    assert parts["log-probs"] == pytest.approx(parts["compute"] / 3 + exchanged / (4 if layout.recomputes else 3))


def test_small_packs_wait_for_the_host() -> None:
    """A layer of 2,048 tokens is computed sooner than its kernels and exchanges are launched: 2.7 ms, and 0.5 for each
    of eight exchanges. One of 8,192 is not."""
    small = seconds(TP2, Grid(2, tp=2), 2048, 1024, 16)
    on_device = small["compute"] + small["tensor parallel"]
    assert small["launches"] > 0
    head = 16 * 2048 * 6 * 151552 * 4096 / 2 / (0.65 * 989e12)
    assert small["launches"] + on_device - head == pytest.approx(16 * 40 * (2.7e-3 + 8 * 5e-4))
    assert "launches" not in seconds(TP2, Grid(2, tp=2), 8192, 1024, 16)


def test_packs_hold_whole_sequences_where_all_are_as_long() -> None:
    """Of 3,000 tokens a pack of 8,192 holds two, of lengths that differ nearly 8,192 tokens."""
    plan = plan_of("+model=glm4-9b-trial", *CUT, "train.max_tokens_per_micro_batch=8192")
    trained, layout = ForwardFlops(plan.model, plan.weights, 3000), Layout.of(plan)
    even, alike = (
        training_seconds(Work(80, 3000, most=most), trained, layout, plan.trainers)["compute"] for most in (6000, 3000)
    )
    assert alike - even == pytest.approx((40 - 30) * 12 * 9e-4), "gaps between kernels of ten more packs"


def test_engines_with_many_requests_multiply_longer_than_they_read() -> None:
    """From 2 FLOPs a parameter and request on, 989 TFLOP/s beside 3,350 GB/s of an H100, at the shares of both."""
    plan = plan_of("+model=glm4-9b-trial", "+cluster=h200x1", "cluster.gpu=h100")
    cfg, [rank] = plan.cfg, plan.engines.values()
    few, twice, many = (_step(cfg.cluster, rank, running, 0.0) for running in (1.0, 2.0, 1024.0))
    layer = 2 * 4096 * 4096 + 2 * 4096 * 256 + 3 * 4096 * 13696
    assert rank.flops == 2 * (12 * layer + 4096 * 151552)
    assert twice - few == pytest.approx(151552 * 52 / HBM)
    products = 1024 * rank.flops / (0.65 * 989e12)
    assert many - few == pytest.approx(products - rank.weight_bytes / HBM + 1023 * 151552 * 52 / HBM)


def test_an_evaluation_counts_by_its_share_of_a_step() -> None:
    plan = plan_of("+model=glm4-9b", "+cluster=h100x8")
    [rank] = plan.engines.values()
    cfg = plan.cfg
    assert held_out_prompts(cfg.rollout, cfg.eval) == (cfg.rollout.prompts_per_step, False), "their file is not here"
    once = generation_seconds(
        cfg.rollout, cfg.cluster, Work(32 * 16, (1024 + 16384) / 2, prompt=512, samples_per_prompt=16), rank
    )
    assert once is not None
    requests = 32 * 16 * 6e-4
    assert engine_seconds(cfg, work_of(cfg), [rank])["evaluation"] == pytest.approx((once + requests) / 5)
    cfg.eval.path = "pkg://slime_rewards.math/data/arithmetic-heldout.jsonl"
    rows = resolve(cfg.eval.path).read_text().splitlines()
    assert held_out_prompts(cfg.rollout, cfg.eval) == (len(rows), True)
    cfg.eval.path = None
    assert "evaluation" not in engine_seconds(cfg, work_of(cfg), [rank])


def test_a_critic_is_trained_as_the_policy_is_behind_a_pass_for_its_values() -> None:
    """Its optimizer has less to do, by the output layer: within the fifth that an estimate is good for."""
    alone, both = seconds(CUT, ONE, 8192, 2048, 4), seconds([*CUT, "algo=ppo"], ONE, 8192, 2048, 4)
    assert {name: both[name] for name in alone} == alone
    assert both["critic"] == pytest.approx(sum(alone.values()) + alone["compute"] / 3)


def test_seconds_of_a_4090_are_those_of_an_h100_by_their_data_sheets() -> None:
    """Dense bf16: 165.2 and 989 TFLOP/s. Memory: 1,008 and 3,350 GB/s. To the host: PCIe 4.0 with 32 and 5.0 with 64
    GB/s. Between GPUs: that PCIe and 450 of NVLink. Waits and gaps between kernels are what they are anywhere."""
    words = ["+model=qwen2.5-1.5b", "+cluster=h100x8", "recipe=none"]
    plan = plan_of(*words)
    grid, work = Grid(8, tp=2), work_of(plan.cfg)
    trained = ForwardFlops(plan.model, plan.weights, work.tokens)
    ranks = [dataclasses.replace(plan.trainers[0], grid=grid, takes_turns=True)]
    found, small = {}, {}
    layers, batches = 28, work.sequences * work.tokens / 4 / 4096
    assert batches == int(batches), "else the last one is less full"
    for name in ("h100", "rtx4090"):
        rates = Rates.of(plan_of(*words, f"cluster.gpu={name}").cfg.cluster)
        layout = dataclasses.replace(Layout.of(plan), grid=grid, cap=4096, rates=rates)
        found[name] = training_seconds(work, trained, layout, ranks)
        small[name] = batches * layers * 4096 / 2 * 32 * 1536 * 2 / rates.memory
    fixed = {"compute": batches * layers * 9e-4, "tensor parallel": batches * layers * 4 * 2 * 1e-4}
    h100, other = (
        {part: all_of[part] - fixed.get(part, 0) - small[name] * (part == "compute") for part in all_of}
        for name, all_of in found.items()
    )
    assert other["compute"] / h100["compute"] == pytest.approx(989 / 165.2)
    assert other["optimizer"] / h100["optimizer"] == pytest.approx(3350 / 1008)
    moved = other["moves to and from the host"] / h100["moves to and from the host"]
    assert moved == pytest.approx(30 / (32 * 50 / 64)), "four H100s share 120 GB/s"
    assert other["tensor parallel"] / h100["tensor parallel"] == pytest.approx(450 / 32)


def test_decoding_reads_at_the_rate_of_the_gpus_memory() -> None:
    """A step without exchanges: what is read, 40 us a layer, and 2 ms of the host."""
    words = ["+model=qwen2.5-1.5b", "+cluster=h100x1"]
    [rank] = plan_of(*words).engines.values()
    slow, fast = (plan_of(*words, f"cluster.gpu={name}").cfg for name in ("l4", "h100"))
    reading = [_step(cfg.cluster, rank, 8.0, 1000.0) - rank.num_layers * 4e-5 - 2e-3 for cfg in (slow, fast)]
    assert reading[0] / reading[1] == pytest.approx(3350 / 300)
