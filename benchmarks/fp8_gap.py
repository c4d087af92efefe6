"""What FP8 weights alone do to log-probs: transformers in fp32 with a model's weights, and with what engines hold.

    python benchmarks/fp8_gap.py pkg://slime_plugin_glm4/assets/glm4-moe-tiny    # random weights, a minute on a CPU

One row for each part of the weights that is quantised, and one for all. Tokens are random and so are weights, so
a row says how precision passes through this architecture, not how a trained model behaves. Means and largest values
are over tokens, in nats; a token that an expert more or less sees is among the largest.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch
from machine import conditions

from slime.config.fp8 import Fp8Format
from slime.config.hf import read_hf_config
from slime.testing import models
from slime.testing.engines import hf_tensors
from slime.testing.generation import hold
from slime.weights.quantized import quantized

PARTS = ("all", "attention", "experts", "MLPs beside the experts")
NUM_SEQUENCES, LENGTH = 8, 256


def part_of(name: str) -> str:
    if "self_attn" in name:
        return "attention"
    return "experts" if ".experts." in name else "MLPs beside the experts"


@torch.no_grad()
def gap(folder: str, part: str, powers_of_two: bool) -> torch.Tensor:
    """|difference| of the log-probs of tokens that the quantised model draws."""
    hf = read_hf_config(folder)
    plain, engine = (models.random_model(hf, seed=1).eval() for _ in range(2))
    fp8 = replace(Fp8Format(), powers_of_two=powers_of_two)
    held = ((name, tensor) for name, tensor in hf_tensors(engine) if part in ("all", part_of(name)))
    hold(engine, dict(quantized(held, fp8, 1 << 24)))
    torch.manual_seed(0)
    tokens = torch.randint(0, hf["vocab_size"], (NUM_SEQUENCES, LENGTH))
    theirs, ours = (model(tokens).logits.log_softmax(-1) for model in (engine, plain))
    drawn = torch.distributions.Categorical(logits=theirs).sample()[..., None]
    return (theirs.gather(-1, drawn) - ours.gather(-1, drawn)).abs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    options = parser.parse_args()
    print(f"{conditions()}\n{options.folder}\n\n| quantised | scales | mean | largest |\n|---|---|---|---|")
    for part in PARTS:
        for powers_of_two in (False, True):
            found = gap(options.folder, part, powers_of_two)
            kind = "powers of two" if powers_of_two else "fp32"
            print(f"| {part} | {kind} | {found.mean():.4f} | {found.max():.3f} |", flush=True)


if __name__ == "__main__":
    main()
