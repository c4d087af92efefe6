"""What FP8 weights alone do to log-probs: transformers in fp32 with a model's weights, and with what engines hold.

    python benchmarks/fp8_gap.py pkg://slime_plugin_glm4/assets/glm4-moe-tiny    # random weights, a minute on a CPU

One row for each part of the weights that is quantised, and one for all. Tokens are random and so are weights, so
a row says how precision passes through this architecture, not how a trained model behaves. Means and largest values
are over tokens, in nats. "Same experts" is with the experts that the exact weights choose: the rest is routing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from machine import conditions

from slime.config.hf import read_hf_config
from slime.weights.quantized import quantized, quantizer_of
from slime_megatron.fp8_block.config import Fp8Format
from slime_testing import models
from slime_testing.engines import hf_tensors
from slime_testing.generation import hold

PARTS = ("all", "attention", "experts", "MLPs beside the experts")
NUM_SEQUENCES, LENGTH = 8, 256


def part_of(name: str) -> str:
    if "self_attn" in name:
        return "attention"
    return "experts" if ".experts." in name else "MLPs beside the experts"


Routes = list[torch.Tensor]
"""Of every layer with experts, in their order: [tokens, experts of a token]."""


def routers(model: torch.nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "route_tokens_to_experts"))


def recorded(model: torch.nn.Module) -> Routes:
    """Fills itself while the model runs."""
    routes: Routes = []

    def record(route: Callable[[torch.Tensor], Any], logits: torch.Tensor) -> Any:
        routes.append((chosen := route(logits))[0])
        return chosen

    for router in routers(model):
        router.route_tokens_to_experts = partial(record, router.route_tokens_to_experts)
    return routes


def replay(model: torch.nn.Module, routes: Routes) -> None:
    """Have the model take these experts, by its own weights for them."""

    def repeat(router: Any, experts: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = logits.sigmoid().gather(1, experts)
        if router.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return experts, weights * router.routed_scaling_factor

    for router, experts in zip(routers(model), routes, strict=False):  # a prediction layer's never runs
        router.route_tokens_to_experts = partial(repeat, router, experts)


@torch.no_grad()
def gaps(folder: str, part: str, powers_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """|difference| of the log-probs of tokens that the quantised model draws; and with the same experts."""
    hf = read_hf_config(folder)
    plain, engine = (models.random_model(hf, seed=1).eval() for _ in range(2))
    quantizer = quantizer_of(Fp8Format(powers_of_two))
    held = ((name, tensor) for name, tensor in hf_tensors(engine) if part in ("all", part_of(name)))
    hold(engine, dict(quantized(held, quantizer)), quantizer)
    torch.manual_seed(0)
    tokens = torch.randint(0, hf["vocab_size"], (NUM_SEQUENCES, LENGTH))
    routes = recorded(plain)
    exact, rounded = (model(tokens).logits.log_softmax(-1) for model in (plain, engine))
    drawn = torch.distributions.Categorical(logits=rounded).sample()[..., None]
    replay(engine, routes)
    same = engine(tokens).logits.log_softmax(-1)
    wanted = exact.gather(-1, drawn)
    return (rounded.gather(-1, drawn) - wanted).abs(), (same.gather(-1, drawn) - wanted).abs()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    options = parser.parse_args()
    print(f"{conditions()}\n{options.folder}\n")
    print(f"| quantised | scales | mean | largest | same experts: mean | largest |\n|{'---|' * 6}")
    for part in PARTS:
        for powers_of_two in (False, True):
            cells = [f"{gap.mean():.4f} | {gap.max():.3f}" for gap in gaps(options.folder, part, powers_of_two)]
            kind = "powers of two" if powers_of_two else "fp32"
            print(f"| {part} | {kind} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
