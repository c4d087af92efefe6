"""Log-probs and entropies from hidden states, forward and backward: time, memory and error of five ways.

    python benchmarks/logprob.py                        # hidden 4096, vocabulary 151,552, 8k to 128k tokens, one GPU
    python benchmarks/logprob.py --sizes 2048 154880    # of GLM-4.7-Flash; GLM-4.5-Air and GLM-4-9B have the first
    python benchmarks/logprob.py --device cpu --tiny    # a second, to see that it runs

- plain: log_softmax over all logits at once, as torch has it;
- chunked: `vocabulary_logprobs.logprob` with plain torch operations on each chunk;
- fused: the same with the kernels that a policy on this device chooses (on a CPU there are none);
- kept: like that in chunks of the size that is usual on GPUs, the last of which is not computed again;
- fp32: like that with `model.fp32_lm_head`.

Growth is the peak of allocated memory over hidden states, weights and Megatron's fp32 gradient buffer of the weights,
all of which are there before; the hidden states' gradient is part of it. Errors are against float64 at the smallest
size: largest absolute difference of log-probs and entropies (nats), relative Euclidean distance of the gradients.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from machine import conditions
from torch import Tensor

from vocabulary_logprobs.logprob import PlainKernels, VocabularyKernels, logprobs_and_entropy, vocabulary_kernels

PROMISED_GROWTH = 1.5e9
NUM_MEASURED = 3


@dataclass(frozen=True)
class Sizes:
    hidden: int
    vocabulary: int
    tokens: tuple[int, ...]
    chunk: int
    kept: int


REAL = Sizes(4096, 151552, (8192, 32768, 131072), 1024, 8192)
TINY = Sizes(32, 500, (64, 256), 48, 64)


@dataclass(frozen=True)
class Inputs:
    """hidden [t, h], weight [v, h], labels [t], factors [2, t] of the loss, main_grad [v, h] fp32."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    factors: Tensor
    main_grad: Tensor

    @classmethod
    def of(cls, sizes: Sizes, num_tokens: int, device: torch.device) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        options = {"device": device, "dtype": torch.bfloat16, "generator": generator}
        return cls(
            torch.randn(num_tokens, sizes.hidden, **options).requires_grad_(),
            torch.randn(sizes.vocabulary, sizes.hidden, **options).mul_(0.05).requires_grad_(),
            torch.randint(0, sizes.vocabulary, (num_tokens,), device=device, generator=generator),
            torch.randn(2, num_tokens, device=device, generator=generator),
            torch.zeros(sizes.vocabulary, sizes.hidden, device=device),
        )

    def in_float64(self) -> Inputs:
        hidden, weight = (x.detach().double().requires_grad_() for x in (self.hidden, self.weight))
        return Inputs(hidden, weight, self.labels, self.factors.double(), self.main_grad.double())


Way = Callable[[Inputs], Tensor]
"""[2, t] scores; a backward pass through them follows."""


def plain(inputs: Inputs) -> Tensor:
    log_p = torch.log_softmax((inputs.hidden @ inputs.weight.t()).float(), dim=1)
    return torch.stack([log_p.gather(1, inputs.labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)])


def chunked(kernels: VocabularyKernels, chunk: int, *, fp32_logits: bool = False) -> Way:
    def way(inputs: Inputs) -> Tensor:
        return logprobs_and_entropy(
            inputs.hidden,
            inputs.weight,
            inputs.labels,
            chunk_tokens=chunk,
            entropy_gradient=True,
            group=dist.group.WORLD,
            kernels=kernels,
            main_grad=inputs.main_grad,
            fp32_logits=fp32_logits,
        )

    return way


def run(way: Way, inputs: Inputs) -> Tensor:
    """Forward and backward; gradients then lie in hidden.grad and in main_grad or weight.grad."""
    inputs.hidden.grad = inputs.weight.grad = None
    scores = way(inputs)
    scores.backward(inputs.factors)
    return scores.detach()


def measure(way: Way, inputs: Inputs) -> tuple[float, int]:
    """Median seconds, and the growth of memory in bytes (0 without a GPU)."""
    on_gpu, seconds, growth = inputs.hidden.is_cuda, [], 0
    for _ in range(1 + NUM_MEASURED):
        inputs.hidden.grad = inputs.weight.grad = None
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        run(way, inputs)
        if on_gpu:
            torch.cuda.synchronize()
            growth = torch.cuda.max_memory_allocated() - before
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), growth


def errors(way: Way, inputs: Inputs, exact: tuple[Tensor, Tensor, Tensor]) -> list[float]:
    """Of log-probs, entropies, the hidden states' and the weights' gradient."""
    inputs.main_grad.zero_()
    scores = run(way, inputs)
    in_buffer = getattr(inputs.weight, "grad_added_to_main_grad", False) and way is not plain
    assert inputs.hidden.grad is not None
    got = (scores, inputs.hidden.grad, inputs.main_grad if in_buffer else inputs.weight.grad)
    differences = [(x.double() - wanted) for x, wanted in zip(got, exact, strict=True)]
    relative = [float(d.norm() / wanted.norm()) for d, wanted in zip(differences[1:], exact[1:], strict=True)]
    return [*differences[0].abs().amax(dim=1).tolist(), *relative]


def exact_results(inputs: Inputs, chunk: int) -> tuple[Tensor, Tensor, Tensor]:
    doubled = inputs.in_float64()
    scores = run(chunked(PlainKernels(), chunk), doubled)
    assert doubled.hidden.grad is not None
    return scores, doubled.hidden.grad, doubled.main_grad


def row(name: str, num_tokens: int, way: Way, inputs: Inputs, known_errors: list[float] | None) -> tuple[str, int]:
    try:
        seconds, growth = measure(way, inputs)
    except torch.OutOfMemoryError:
        return f"| {num_tokens} | {name} | out of memory | | | | | |", 0
    cells = [f"{error:.1e}" for error in known_errors] if known_errors else [""] * 4
    return f"| {num_tokens} | {name} | {1e3 * seconds:.1f} | {growth / 1e9:.3f} | {' | '.join(cells)} |", growth


HEAD = """\
| tokens | way | ms | growth, GB | log-prob | entropy | hidden gradient | weight gradient |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--sizes", nargs=2, type=int, metavar=("HIDDEN", "VOCABULARY"), help="of a model")
    options = parser.parse_args()
    sizes, device = TINY if options.tiny else REAL, torch.device(options.device)
    if options.sizes:
        hidden, vocabulary = options.sizes
        sizes = dataclasses.replace(sizes, hidden=hidden, vocabulary=vocabulary)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    ways = {"plain": plain, "chunked": chunked(PlainKernels(), sizes.chunk)}
    ways["kept"] = chunked(vocabulary_kernels(device), sizes.kept)
    ways["fp32"] = chunked(vocabulary_kernels(device), sizes.kept, fp32_logits=True)
    ways["fused"] = chunked(vocabulary_kernels(device), sizes.chunk)  # the last, whose growth is promised
    print(
        f"{conditions()}\nhidden {sizes.hidden}, vocabulary {sizes.vocabulary}, bf16, chunks of {sizes.chunk} tokens, "
        f"or {sizes.kept}; log-probs and entropies with gradients of both\n\n{HEAD}",
        flush=True,
    )
    growth = 0
    for num_tokens in sizes.tokens:
        inputs, found = Inputs.of(sizes, num_tokens, device), {}
        if num_tokens == sizes.tokens[0]:
            exact = exact_results(inputs, sizes.chunk // 4)
            found = {name: errors(way, inputs, exact) for name, way in ways.items()}
            del exact
        for name, way in ways.items():
            line, growth = row(name, num_tokens, way, inputs, found.get(name))
            print(line, flush=True)
        del inputs
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if device.type == "cuda" and not options.tiny:
        verdict = "kept" if 0 < growth < PROMISED_GROWTH else "MISSED"
        print(f"\ngrowth {growth / 1e9:.3f} GB at {sizes.tokens[-1]} tokens, promised < 1.5 GB: {verdict}")


if __name__ == "__main__":
    main()
