"""Training tokens a second and model FLOP utilisation of slime's trainer, with its peak memory.

    python benchmarks/train.py                          # glm4-9b-trial, 12 layers, on one GPU
    python benchmarks/train.py --only 0 2               # some rows
    python benchmarks/train.py --gpus 2                 # all of glm4-9b-trial, cut by tensors or by layers
    python benchmarks/train.py --gpus 4 --profile       # 24 layers of GLM-4.7-Flash's sizes, its experts over the GPUs
    python benchmarks/train.py --gpus 4 model.num_layers=16 # ... on GPUs of 80 GB
    python benchmarks/train.py --model glm4.5-air --gpus 2  # another model: its experts over two GPUs
    python benchmarks/train.py --model glm5.2           # sparse attention: three layers at GLM-5.2's widths
    python benchmarks/train.py --device cpu --tiny      # a few seconds, to see that it runs

Each row has processes of its own with the real Trainer: steps of `rl` on random tokens, `--micro-batches` packs an
optimizer step and data-parallel rank, every pack full of sequences of one length. The time is the median optimizer step
after two for warm-up, with everything that belongs to one: forward, backward, gradient check, clipping, Adam, metrics.

    FLOPs = 6 * N * T + 6 * layers * heads * head size * (sum of squared sequence lengths)

N counts parameters of matrix products (no input embedding, no norms), T tokens; the second part is causal attention
forward and backward, half of the full square (PaLM, arXiv 2204.02311, appendix B). Of experts N counts those that a
token is sent to. Recomputation is not counted. With sparse attention a token attends to at most `index_topk` keys; what
indexers take to choose them, which do not learn here, is not counted.

GLM-5.2's cut has a dense layer and two with experts, the last of which uses the keys of the one before, and of the 256
experts of a layer 32 a GPU: what a rank has of all of them with experts over eight.

TFLOP/s and MFU are of one GPU, the latter relative to an H200's dense bf16 peak of 989 TFLOP/s; peak is the fullest
GPU's. Where eight sequences have one prompt, it is computed with each of them, or once (`train.share_prompts`): tokens
are counted alike, and FLOPs for the former alone. So are turns: eight sequences of an attempt whose history is
rewritten for each: of 1, 2, .. 8 eighths of the tokens of the last, each trains the last quarter of an eighth, in the
place of which the later ones have other tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from kernels import profile
from machine import conditions
from train_models import DATA, EXPERTS, SPARSE, TINY, arguments_of
from train_samples import Case, random_samples, turns

from slime.compose.compose import compose
from slime.config.schema import LossMean, SlimeConfig
from slime_testing.ranks import Rank, run_ranks

PEAK_FLOPS = 989e12
TARGET_MFU = 0.45
NUM_WARMUP, NUM_MEASURED = 2, 3
CLUSTERS = {
    **{("cuda", gpus): f"h200x{gpus}" for gpus in (1, 2, 4)},
    ("cpu", 1): "local",
    ("cpu", 2): "local2",
    ("cpu", 4): "local2",
}
FOUR = ["cluster.num_trainers=4", "cluster.devices_per_node=4"]
CASES = {
    1: [
        Case(8192, 2048),
        Case(8192, 2048, recompute=True),
        Case(32768, 2048),
        Case(32768, 2048, recompute=True),
        Case(32768, 32768),
        Case(8192, 2048, cpu_adam=True),
        Case(32768, 2048, cpu_adam=True),
        Case(24576, 3072, prompt=2048),
        Case(24576, 3072, prompt=2048, shared=True),
        Case(16384, 2048, prompt=512),
        Case(16384, 2048, prompt=512, shared=True),
        Case(36864, 8192, turns=True),
        Case(36864, 8192, turns=True, shared=True),
    ],
    2: [
        Case(4096, 1024, tensor=2),
        Case(8192, 1024, tensor=2),
        Case(4096, 1024, pipeline=2),
        Case(8192, 1024, pipeline=2),
    ],
}
TINY_CASES = {
    1: [
        Case(256, 64),
        Case(256, 64, recompute=True),
        Case(512, 64, prompt=40),
        Case(512, 64, prompt=40, shared=True),
        Case(576, 128, turns=True),
        Case(576, 128, turns=True, shared=True),
    ],
    2: [Case(256, 64, tensor=2), Case(256, 64, pipeline=2), Case(256, 64)],
}


def over_experts(gpus: int, tiny: bool, model: str) -> list[Case]:
    """The rows of a mixture of experts, with its experts over all GPUs; of a tiny one, also with all on each. Sequences
    that attend sparsely are as long as a pack; of others some have a common prompt."""
    pack, sequence, prompt = (512, 64, 40) if tiny else (12288, 1536, 1024)
    prompts = [Case(pack, sequence, prompt=prompt, shared=shared, expert=gpus) for shared in (False, True)]
    if tiny:
        return [*(Case(256, 64, expert=expert) for expert in dict.fromkeys((gpus, 1))), *prompts]
    packs = [(8192, 8192), (16384, 16384)] if model == SPARSE else [(8192, 2048), (16384, 2048)]
    found = [Case(*pack, recompute=full, expert=gpus) for full in (False, True) for pack in packs]
    return found if model == SPARSE else [*found, *prompts]


@dataclass(frozen=True)
class Measured:
    """Of one case on one rank: median seconds an optimizer step, the rank's FLOPs and the tokens of all in it, peak of
    allocated memory, and profile."""

    seconds: float
    flops: float
    num_tokens: int
    peak_bytes: int
    profile: str

    @classmethod
    def of_all(cls, ranks: Sequence[Measured]) -> Measured:
        """Mean FLOPs of a rank, the slowest rank's seconds, the fullest one's peak, the first one's profile."""
        return cls(
            seconds=max(rank.seconds for rank in ranks),
            flops=statistics.fmean(rank.flops for rank in ranks),
            num_tokens=ranks[0].num_tokens,
            peak_bytes=max(rank.peak_bytes for rank in ranks),
            profile=ranks[0].profile,
        )


def measure(
    rank: Rank, arguments: Sequence[str], fields: tuple[Any, ...], num_micro_batches: int, with_profile: bool
) -> tuple[float, float, int, int, str]:
    """The fields of `Measured`, from those of a case. Runs in a process of its own."""
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    case = Case(*fields)
    cfg = compose([*arguments, *case.arguments()])
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    num_dp = trainer.data_parallel_size
    make = turns if case.turns else random_samples
    samples = make(case, num_dp * num_micro_batches, trainer.hf["vocab_size"])
    (batch,) = pack(
        samples,
        num_dp=num_dp,
        align=trainer.packing_align,
        max_tokens=case.pack,
        loss_mean=LossMean.token,
        share_below=float(case.shared),
    )
    full = all(len(of_rank) == num_micro_batches for of_rank in batch.micro_batches)
    assert full or case.shared, "every pack is full"
    seconds = []
    for step in range(NUM_WARMUP + NUM_MEASURED):
        if step == NUM_WARMUP and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        trainer.train([batch], step, "rl")  # waits for the device
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    num_tokens = case.pack * num_micro_batches * num_dp
    found = profile(lambda: trainer.train([batch], len(seconds), "rl")) if with_profile else ""
    needed = flops(trainer, case, num_tokens)
    torch.distributed.destroy_process_group()
    return statistics.median(seconds[NUM_WARMUP:]), needed, num_tokens, peak, found


def flops(trainer: Any, case: Case, num_tokens: int) -> float:
    """This rank's of one optimizer step, as the docstring above says: attention and the experts' tokens are shared out
    evenly."""
    config = trainer.model.config
    named = [pair for module in trainer.model.modules for pair in module.named_parameters()]
    sent = 1.0
    if config.num_moe_experts:
        sent = config.moe_router_topk * config.expert_model_parallel_size / config.num_moe_experts
    products = sum(
        p.numel() * (sent if ".experts." in name else 1.0)
        for name, p in named
        if p.dim() == 2 and "word_embeddings" not in name
    )
    size = config.kv_channels
    if config.multi_latent_attention:
        size = (config.qk_head_dim + config.qk_pos_emb_head_dim + config.v_head_dim) / 2
    most = min(case.sequence, getattr(config, "dsa_indexer_topk", None) or case.sequence)
    # Twice the keys of all tokens of a sequence, by its length: L for causal attention.
    keys = most * (2 * case.sequence - most) / case.sequence
    width, squared_lengths = config.num_attention_heads * size, num_tokens * keys
    attention: float = 6.0 * config.num_layers * width * squared_lengths / torch.distributed.get_world_size()
    num_of_rank = num_tokens / trainer.data_parallel_size / config.context_parallel_size
    return 6.0 * products * num_of_rank + attention


def row(case: Case, measured: Measured, on_gpu: bool) -> str:
    rate, whole = measured.flops / measured.seconds, not (case.shared or case.turns)
    common = "turns" if case.turns else f"{case.prompt}" if case.prompt else ""
    prompt = f"{common}, {'once' if case.shared else 'each'}" if common else "-"
    cells = [
        str(case.pack),
        str(case.sequence),
        prompt,
        case.layout,
        "full" if case.recompute else "off",
        "CPU" if case.cpu_adam else "device",
        f"{measured.seconds:.4g}",
        f"{measured.num_tokens / measured.seconds:,.0f}",
        f"{rate / 1e12:.3g}" if whole else "-",
        f"{rate / PEAK_FLOPS:.1%}" if on_gpu and whole else "-",
        f"{measured.peak_bytes / 2**30:.1f}" if on_gpu else "-",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = """\
| pack, tokens | sequence | common prompt | layout | recompute | Adam | s/step | tokens/s | TFLOP/s | MFU | peak, GiB |
|---|---|---|---|---|---|---|---|---|---|---|"""


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
    parser.add_argument("--gpus", type=int, choices=[1, 2, 4], default=1, help="ranks, with --device cpu")
    parser.add_argument("--model", choices=list(TINY), help="glm4-9b on one and two GPUs, else glm4.7-flash")
    parser.add_argument("--tiny", action="store_true", help="a tiny model of the same kind, and small packs")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the rows to measure")
    parser.add_argument("--profile", action="store_true", help="after each row, where one more step's time goes")
    parser.add_argument("overrides", nargs="*", help="further KEY=VALUE of slime's config")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))  # Adam on the CPU uses them all
    on_gpu = options.device == "cuda"
    folder = tempfile.TemporaryDirectory(prefix="train-")
    name = options.model or ("glm4-9b" if options.gpus in CASES else "glm4.7-flash")
    has_experts = name in (*EXPERTS, SPARSE)
    if not has_experts and options.gpus not in CASES:
        parser.error(f"{name} has no rows on {options.gpus} GPUs: --model is one of {', '.join((*EXPERTS, SPARSE))}")
    model = [f"+model={TINY[name]}"] if options.tiny else arguments_of(name, options.gpus, folder.name)
    cluster = CLUSTERS[options.device, options.gpus]
    arguments = [*model, f"+cluster={cluster}", *FOUR * (options.gpus == 4), *DATA, *options.overrides]
    if has_experts:
        cases = over_experts(options.gpus, options.tiny, name)
    else:
        cases = (TINY_CASES if options.tiny else CASES)[options.gpus]
    print(f"{describe(compose(arguments), options.micro_batches)}\n\n{HEAD}", flush=True)
    reached = []
    for number in options.only if options.only is not None else range(len(cases)):
        case = cases[number]
        chosen = (arguments, astuple(case), options.micro_batches, options.profile)
        ranks = run_ranks(measure, options.gpus, *chosen, timeout_s=300)
        measured = Measured.of_all([Measured(*fields) for fields in ranks])
        print(row(case, measured, on_gpu), flush=True)
        if options.profile:
            print(f"\n{measured.profile}\n", flush=True)
        if not case.recompute and not case.cpu_adam and not case.shared and not case.turns:
            reached.append(measured.flops / measured.seconds / PEAK_FLOPS)
    if on_gpu and not options.tiny and options.gpus == 1 and reached:
        verdict = "kept" if min(reached) > TARGET_MFU else "MISSED"
        print(f"\nMFU without recomputation {min(reached):.1%} or more, promised > {TARGET_MFU:.0%}: {verdict}")


if __name__ == "__main__":
    main()
