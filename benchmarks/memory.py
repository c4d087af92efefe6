"""The memory that `slime plan` predicts for trainers beside what real steps take, on GPUs.

    python benchmarks/memory.py                # the cases of one GPU; --gpus 2, --gpus 4: the others
    python benchmarks/memory.py --only 0 3     # some of them
    python benchmarks/memory.py --predict      # without a GPU: what is predicted

Each case has processes of its own with the real Trainer and random weights: two optimizer steps on full packs of random
tokens, then an export of all weights, as publishing takes them, gradients freed. GiB that torch had allocated at most
on the fullest rank; the CUDA context, NCCL and torch's gaps are predicted apart and not compared.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from machine import conditions
from train_models import DATA
from train_samples import CPU_ADAM, RECOMPUTE, random_samples
from train_samples import Case as Packs

from slime.compose.compose import compose, examine
from slime.config.schema import LossMean
from slime_testing.ranks import Rank, run_ranks
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.trainer import GIB, Phase

TOLERANCE = 0.1
RANDOM = ["recipe=none", "model.init=random", "eval.path=null", "rollout.max_prompt_tokens=32"]
RANDOM += [
    "rollout.sampling.max_response_tokens=1024",
    "train.checkpoint.interval=null",
    "train.checkpoint.export_hf=false",
]
ALONE = ["train.share_prompts=false"]  # the samples are random, and have no prompt in common
UNKNOWN = ["cluster.device_memory_mb=null"]  # engines take no part here, so that nothing is refused for them


def model(name: str, package: str, folder: str, tokenizer: str, layers: int) -> list[str]:
    """A published model cut to its first layers."""
    assets = f"pkg://slime_plugin_{package}/assets"
    paths = [f"model.path={assets}/{folder}", f"model.tokenizer={assets}/{tokenizer}"]
    return [f"+model={name}", *paths, f"model.num_layers={layers}", *RANDOM]


def nine(layers: int) -> list[str]:
    return ["+model=glm4-9b-trial", f"model.num_layers={layers}"]


def air(layers: int) -> list[str]:
    return model("glm4.5-air", "glm4", "GLM-4.5-Air", "glm4-moe-tiny", layers)


def flash(layers: int) -> list[str]:
    return model("glm4.7-flash", "glm4", "GLM-4.7-Flash", "glm4-moe-lite-tiny", layers)


def sparse(layers: int) -> list[str]:
    return model("glm5.2", "glm5", "GLM-5.2", "glm5-tiny", layers)


@dataclass(frozen=True)
class Case:
    """Tokens of a pack and of its sequences, and parallel sizes."""

    name: str
    arguments: Sequence[str]
    pack: int
    sequence: int
    tp: int = 1
    pp: int = 1
    ep: int = 1

    def words(self, gpus: int) -> list[str]:
        sizes = {"tensor": self.tp, "pipeline": self.pp, "expert": self.ep}
        layout = [f"train.megatron.{name}_model_parallel_size={size}" for name, size in sizes.items()]
        if self.ep > 1:
            layout.append("train.megatron.expert_tensor_parallel_size=1")
        tokens = f"train.max_tokens_per_micro_batch={self.pack}"
        return [*self.arguments, f"+cluster=h200x{gpus}", *DATA, tokens, *layout, *ALONE, *UNKNOWN]


CASES = {
    1: [
        Case("dense, 12 layers", nine(12), 8192, 2048),
        Case("dense, 12 layers, full", [*nine(12), *RECOMPUTE], 32768, 2048),
        Case("dense, 12 layers, CPU Adam", [*nine(12), *CPU_ADAM], 8192, 8192),
        Case("experts, 2 layers", air(2), 8192, 2048),
        Case("experts, 3 layers, full", [*air(3), *RECOMPUTE], 16384, 4096),
        Case("latent, 6 layers", flash(6), 8192, 2048),
        Case("latent, 6 layers, full", [*flash(6), *RECOMPUTE], 32768, 32768),
        Case("sparse, 3 layers", sparse(3), 8192, 4096),
        Case("sparse, 3 layers, full", [*sparse(3), *RECOMPUTE], 32768, 32768),
    ],
    2: [
        Case("dense, TP 2", nine(24), 8192, 2048, tp=2),
        Case("dense, PP 2, full", [*nine(24), *RECOMPUTE], 16384, 2048, pp=2),
        Case("latent, EP 2", flash(8), 8192, 2048, ep=2),
        Case("latent, TP 2, EP 2, full", [*flash(8), *RECOMPUTE], 16384, 4096, tp=2, ep=2),
        Case("sparse, TP 2", sparse(3), 8192, 4096, tp=2),
    ],
    4: [
        Case("dense, TP 2, PP 2", nine(40), 8192, 2048, tp=2, pp=2),
        Case("latent, EP 4, full", [*flash(24), *RECOMPUTE], 16384, 4096, ep=4),
        Case("latent, PP 2, EP 2", flash(12), 8192, 2048, pp=2, ep=2),
        Case("experts, EP 4, CPU Adam", [*air(6), *CPU_ADAM], 8192, 2048, ep=4),
    ],
}


def predict(words: Sequence[str]) -> list[dict[str, float]]:
    """GiB by phase, of a rank of each pipeline stage."""
    memory = examine(words).memory
    assert isinstance(memory, GpuMemory), "a run on GPUs"
    stages = []
    for trainer in memory.plan.trainers:
        whole = trainer.weights + trainer.optimizer + 3 * trainer.bucket
        stages.append({"train": trainer.allocated(Phase.train) / GIB, "publish": whole / GIB})
    return stages


def measure(rank: Rank, words: Sequence[str], pack_tokens: int, sequence: int) -> tuple[int, dict[str, float]]:
    """Pipeline stage of this rank, and its peaks in GiB."""
    from megatron.core import parallel_state

    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    cfg = compose(words)
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    num_dp = trainer.data_parallel_size
    samples = random_samples(Packs(pack_tokens, sequence), num_dp * 4, trainer.hf["vocab_size"])
    (batch,) = pack(
        samples, num_dp=num_dp, align=trainer.packing_align, max_tokens=pack_tokens, loss_mean=LossMean.token
    )
    trainer.train([batch], 0, "rl")
    torch.cuda.reset_peak_memory_stats()
    trainer.train([batch], 1, "rl")
    found = {"train": torch.cuda.max_memory_allocated() / GIB, "reserved": torch.cuda.max_memory_reserved() / GIB}
    trainer.trim()
    torch.cuda.reset_peak_memory_stats()
    for _ in trainer.export(cfg.weights.bucket_mb * 2**20, everywhere=True):
        pass
    found["publish"] = torch.cuda.max_memory_allocated() / GIB
    stage = parallel_state.get_pipeline_model_parallel_rank()
    torch.distributed.destroy_process_group()
    return stage, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, choices=sorted(CASES), default=1)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the cases")
    parser.add_argument("--predict", action="store_true", help="measure nothing")
    options = parser.parse_args()
    print(
        f"{conditions()}\n\n| case | pack | stage | phase | predicted, GiB | measured | off | reserved |\n|{'---|' * 8}"
    )
    worst = 0.0
    for number in options.only if options.only is not None else range(len(CASES[options.gpus])):
        case, start = CASES[options.gpus][number], time.perf_counter()
        words = case.words(options.gpus)
        predicted = predict(words)
        found: list[tuple[int, dict[str, float]]] = []
        if not options.predict:
            found = run_ranks(measure, options.gpus, words, case.pack, case.sequence, timeout_s=240)
        for stage, of_stage in enumerate(predicted):
            for phase, gib in of_stage.items():
                ranks = [values for at, values in found if at == stage]
                peak = max((values[phase] for values in ranks), default=0.0)
                reserved = max((values["reserved"] for values in ranks), default=0.0) * (phase == "train")
                off = gib / peak - 1 if peak else 0.0
                worst = max(worst, abs(off) if phase == "train" else 0.0)
                cells = [
                    case.name,
                    case.pack,
                    stage,
                    phase,
                    f"{gib:.1f}",
                    f"{peak:.1f}",
                    f"{off:+.1%}",
                    f"{reserved:.1f}",
                ]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    if not options.predict:
        print(f"\ntraining within {worst:.1%}, promised {TOLERANCE:.0%}: {'kept' if worst <= TOLERANCE else 'MISSED'}")


if __name__ == "__main__":
    main()
