"""How fast a trainer leaves its GPU for host memory and comes back, and what it leaves behind.

    python benchmarks/offload.py +model=glm4-9b-trial +cluster=h200x1
    python benchmarks/offload.py                                # glm4-tiny on this machine: only that it runs

One trainer rank in this process, after one step, so that Adam's moments exist. The first move takes the
host memory and is shown apart; the others are what every step of a colocated run pays.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import conditions

from slime.compose.compose import compose
from slime.train.packing import pack
from slime_megatron.train.offload import gradients, host_slots, kept, residue
from slime_megatron.train.trainer import Trainer
from slime_testing.recorded import recorded_samples

REST = [
    "run.num_steps=9",
    "sft.num_steps=0",
    "reward=arithmetic",
    "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl",
]
LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
NUM_MOVES = 5


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main() -> None:
    cfg = compose([*(sys.argv[1:] or LAPTOP), *REST])
    trainer = Trainer(cfg, 0, 1, f"{tempfile.mkdtemp()}/meeting", 0)
    trainer.init_weights()
    samples = recorded_samples(16, trainer.hf["vocab_size"], longest=400)
    (batch,) = pack(samples, num_dp=1, align=trainer.packing_align, max_tokens=4096, loss_mean=cfg.algo.loss_mean)
    trainer.train([batch], 1, "rl")
    moved = host_slots(kept(trainer.model, trainer.optimizer), trainer.device)[-1].end
    freed = sum(buffer.nbytes for buffer in gradients(trainer.model))
    before = residue(trainer.device)
    away, back, left = [], [], {}
    for _ in range(1 + NUM_MOVES):
        seconds, left = timed(trainer.offload)
        away.append(seconds)
        back.append(timed(trainer.onload)[0])
    trainer.train([batch], 2, "rl")  # nothing was lost on the way
    amounts = f"{moved / 1e9:.2f} GB moved, {freed / 1e9:.2f} GB freed"
    print(f"\n{cfg.model.name}, {cfg.model.num_layers or 'all'} layers: {amounts}")
    print(f"{conditions()}; mean of {NUM_MOVES}\n")
    print(f"{'':<12}{'first s':>9}{'then s':>9}{'GB/s':>9}")
    for name, seconds_of in (("offload", away), ("onload", back)):
        mean = statistics.fmean(seconds_of[1:])
        print(f"{name:<12}{seconds_of[0]:>9.2f}{mean:>9.2f}{moved / mean / 1e9:>9.1f}")
    torch.distributed.destroy_process_group()
    print(f"\n{'GiB on the GPU':<18}{'before':>9}{'away':>9}")
    for name, amount in before.items():
        print(f"{name.removeprefix('residue/').removesuffix('_gib'):<18}{amount:>9.2f}{left[name]:>9.2f}")


if __name__ == "__main__":
    main()
