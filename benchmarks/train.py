"""Training tokens a second and model FLOP utilisation of slime's trainer on one device, with its peak memory.

    python benchmarks/train.py                          # glm4-9b's widths cut to 12 layers, on one GPU
    python benchmarks/train.py --only 0 2               # some rows
    python benchmarks/train.py --device cpu --tiny      # a few seconds, to see that it runs

Each row is a process of its own with the real Trainer: `train_rl` on random tokens, `--micro-batches` packs an
optimizer step, every pack full of sequences of one length. The time is the median optimizer step after two for
warm-up, with everything that belongs to one: forward, backward, gradient check, clipping, Adam, metrics.

    FLOPs = 6 * N * T + 6 * layers * heads * head size * (sum of squared sequence lengths)

N counts parameters of matrix products (no input embedding, no norms), T tokens; the second part is causal attention
forward and backward, half of the full square (PaLM, arXiv 2204.02311, appendix B). Recomputation is not counted.
MFU is relative to an H200's dense bf16 peak of 989 TFLOP/s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from machine import conditions

from slime.config.compose import compose
from slime.config.schema import LossMean, SlimeConfig
from slime.testing.ranks import Rank, run_ranks
from slime.types import TrainSample

PEAK_FLOPS = 989e12
TARGET_MFU = 0.45
NUM_WARMUP, NUM_MEASURED = 2, 3
DATA = ["reward=arithmetic", "data.path=pkg://slime_plugin_math/data/arithmetic-train.jsonl", "run.num_steps=9"]
CUT = ["+model=glm4-9b", "+cluster=h200x1", "model.num_layers=12", *DATA]
TINY = ["+model=glm4-tiny", "+cluster=local", *DATA]
RECOMPUTE = [
    "train.megatron.recompute_granularity=full",
    "train.megatron.recompute_method=uniform",
    "train.megatron.recompute_num_layers=1",
]
CPU_ADAM = [
    "train.optimizer.optimizer_cpu_offload=true",
    "train.optimizer.overlap_cpu_optimizer_d2h_h2d=true",
]


@dataclass(frozen=True)
class Case:
    """One row: tokens of a pack, tokens of each of its sequences, and what is switched on."""

    pack: int
    sequence: int
    recompute: bool = False
    cpu_adam: bool = False

    def arguments(self) -> list[str]:
        chosen = RECOMPUTE * self.recompute + CPU_ADAM * self.cpu_adam
        return [*chosen, f"train.max_tokens_per_micro_batch={self.pack}"]


CASES = [
    Case(8192, 2048),
    Case(8192, 2048, recompute=True),
    Case(32768, 2048),
    Case(32768, 2048, recompute=True),
    Case(32768, 32768),
    Case(8192, 2048, cpu_adam=True),
    Case(32768, 2048, cpu_adam=True),
]
TINY_CASES = [Case(256, 64), Case(256, 64, recompute=True)]


@dataclass(frozen=True)
class Measured:
    """Of one case: median seconds an optimizer step, its FLOPs and tokens, peak of allocated memory, and profile."""

    seconds: float
    flops: float
    num_tokens: int
    peak_bytes: int
    profile: str


def measure(
    rank: Rank, arguments: Sequence[str], fields: tuple[Any, ...], num_micro_batches: int, with_profile: bool
) -> tuple[float, float, int, int, str]:
    """The fields of `Measured`, from those of a case. Runs in a process of its own."""
    from slime.train.packing import pack
    from slime.train.trainer import Trainer

    case = Case(*fields)
    cfg = compose([*arguments, *case.arguments()])
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    samples = random_samples(case, num_micro_batches, trainer.hf["vocab_size"])
    (batch,) = pack(samples, num_dp=1, align=trainer.packing_align, max_tokens=case.pack, loss_mean=LossMean.token)
    assert len(batch.micro_batches[0]) == num_micro_batches, "every pack is full"
    seconds = []
    for step in range(NUM_WARMUP + NUM_MEASURED):
        if step == NUM_WARMUP and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        trainer.train_rl([batch], step)  # waits for the device
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    num_tokens = case.pack * num_micro_batches
    found = profile(lambda: trainer.train_rl([batch], len(seconds))) if with_profile else ""
    torch.distributed.destroy_process_group()
    return statistics.median(seconds[NUM_WARMUP:]), flops(trainer, case, num_tokens), num_tokens, peak, found


def profile(step: Callable[[], Any]) -> str:
    """The kernels of one more step by their time on the device."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
    kernels = [event for event in profiler.key_averages() if event.self_device_time_total and not event.cpu_time_total]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in kernels)
    lines = [f"{'ms':>9}{'share':>7}{'calls':>7}  kernel (of {total / 1e3:.1f} ms on the device)"]
    lines += [
        f"{event.self_device_time_total / 1e3:>9.2f}{event.self_device_time_total / total:>7.1%}{event.count:>7}  "
        f"{event.key[:110]}"
        for event in kernels[:30]
    ]
    return "\n".join(lines)


def random_samples(case: Case, num_micro_batches: int, vocab_size: int) -> list[TrainSample]:
    generator = np.random.default_rng(0)
    num_response_tokens = case.sequence * 3 // 4
    return [
        TrainSample(
            tokens=generator.integers(0, vocab_size, case.sequence),
            loss_mask=np.ones(num_response_tokens, np.float32),
            advantages=np.full(num_response_tokens, generator.normal(), np.float32),
            rollout_logprobs=np.full(num_response_tokens, -np.log(vocab_size), np.float32),
        )
        for _ in range(num_micro_batches * case.pack // case.sequence)
    ]


def flops(trainer: Any, case: Case, num_tokens: int) -> float:
    """Of one optimizer step, as the docstring above says."""
    named = [pair for module in trainer.model.modules for pair in module.named_parameters()]
    products = sum(p.numel() for name, p in named if p.dim() == 2 and "word_embeddings" not in name)
    config = trainer.model.config
    width, squared_lengths = config.num_attention_heads * config.kv_channels, num_tokens * case.sequence
    return 6.0 * products * num_tokens + 6.0 * config.num_layers * width * squared_lengths


def row(case: Case, measured: Measured, on_gpu: bool) -> str:
    rate = measured.flops / measured.seconds
    cells = [
        str(case.pack),
        str(case.sequence),
        "full" if case.recompute else "off",
        "CPU" if case.cpu_adam else "device",
        f"{measured.seconds:.3f}",
        f"{measured.num_tokens / measured.seconds:,.0f}",
        f"{rate / 1e12:.3g}",
        f"{rate / PEAK_FLOPS:.1%}" if on_gpu else "-",
        f"{measured.peak_bytes / 2**30:.1f}" if on_gpu else "-",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """\
| pack, tokens | sequence, tokens | recompute | Adam | s/step | tokens/s | TFLOP/s | MFU | peak, GiB |
|---|---|---|---|---|---|---|---|---|"""


def describe(cfg: SlimeConfig, num_micro_batches: int) -> str:
    layers = f", {cfg.model.num_layers} layers" if cfg.model.num_layers else ""
    precision = "bf16" if cfg.train.megatron.get("bf16") else "fp32"
    return (
        f"{conditions()}\n{cfg.model.name}{layers}, {precision}, fp32 gradients and master weights, random weights; "
        f"{num_micro_batches} packs an optimizer step, log-probs in chunks of {cfg.train.logprob_chunk_tokens} tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="glm4-tiny and small packs")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the rows to measure")
    parser.add_argument("--profile", action="store_true", help="after each row, where one more step's time goes")
    parser.add_argument("overrides", nargs="*", help="further KEY=VALUE of slime's config")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # Adam on the CPU uses them all
    on_gpu = options.device == "cuda"
    arguments = [*(TINY if options.tiny else CUT), *options.overrides]
    if options.tiny and on_gpu:
        arguments += ["cluster=h200x1"]
    cases = TINY_CASES if options.tiny else CASES
    print(f"{describe(compose(arguments), options.micro_batches)}\n\n{HEAD}", flush=True)
    reached = []
    for number in options.only if options.only is not None else range(len(cases)):
        case = cases[number]
        chosen = (arguments, astuple(case), options.micro_batches, options.profile)
        [fields] = run_ranks(measure, 1, *chosen, timeout_s=300)
        measured = Measured(*fields)
        print(row(case, measured, on_gpu), flush=True)
        if options.profile:
            print(f"\n{measured.profile}\n", flush=True)
        if not case.recompute and not case.cpu_adam:
            reached.append(measured.flops / measured.seconds / PEAK_FLOPS)
    if on_gpu and not options.tiny and reached:
        verdict = "kept" if min(reached) > TARGET_MFU else "MISSED"
        print(f"\nMFU without recomputation {min(reached):.1%} or more, promised > {TARGET_MFU:.0%}: {verdict}")


if __name__ == "__main__":
    main()
