"""Why FP8 engines and the trainer differ on the same tokens: what each cause costs, in nats a token.

The trainer scores sampled tokens with its own weights; with these as the engines hold them; with the latter, but the
experts that its own weights choose; and, where engines round activations too, with activations rounded as well:

    weights     = |FP8 weights, own experts - own|          what rounding the weights costs by itself
    experts     = |FP8 weights - FP8 weights, own experts|  what tokens cost that take other experts because of it
    activations = |FP8 weights and activations - FP8 weights|
    rest        = |engine - the last of these|              the KV cache's precision, kernels, faults

All are means of absolute differences. Causes cancel or amplify each other: they do not add up to the gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from slime_megatron.fp8_block.blocks import E4M3, LARGEST, dequantize
from slime_megatron.fp8_block.config import BLOCK, Fp8Format
from slime_megatron.fp8_block.quantizer import quantize
from slime_megatron.mixture_of_experts.grouped import GroupedExperts
from slime_megatron.train import reference
from slime_megatron.train.gaps import Scores, means, of_engine
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.step import score
from slime_megatron.train.weights.local import LocalTensor

_LEAST = 1e-10
"""What the largest activation of a group counts at least, as in SGLang's `per_token_group_quant_8bit`."""


def multiplies_fp8(device: torch.device) -> bool:
    """Whether SGLang rounds activations there: where it multiplies in FP8, not on a CPU, nor on older GPUs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def explain(
    model: Model,
    local: Mapping[str, LocalTensor],
    fp8: Fp8Format,
    micro_batches: Sequence[LocalMicroBatch],
    *,
    activations: bool,
    records: bool = False,
) -> dict[str, float]:
    """What each cause costs, as `slime_megatron.train.gaps.means`; collective. Weights are bit for bit the same
    afterwards. Meanwhile host memory holds a copy of them.

    Args:
        local: this rank's weights.
        micro_batches: as many on every rank.
        activations: whether engines round them (`multiplies_fp8`).
        records: engines told which experts they chose. These are used throughout, so that routing costs nothing here.
    """
    routers = [part for module in model.modules for part in module.modules() if isinstance(part, TopKRouter)]
    choices = [_Choices() for _ in routers]
    with _choosing(routers, choices):
        own = score(model, micro_batches)
    with reference.restored(model.modules):
        round_weights(local, fp8)
        last = same_experts = score(model, micro_batches)
        causes: dict[str, tuple[Scores, Scores]] = {}
        if model.config.num_moe_experts and not records:
            with _choosing(routers, choices):
                same_experts = score(model, micro_batches)
            causes["experts"] = (last, same_experts)
        causes["weights"] = (same_experts, own)
        if activations:
            with _rounding_activations(model, local, fp8):
                rounded = score(model, micro_batches)
            causes["activations"] = (rounded, last)
            last = rounded
    causes["rest"] = (last, of_engine(micro_batches))
    return means(causes, micro_batches)


@torch.no_grad()
def round_weights(local: Mapping[str, LocalTensor], fp8: Fp8Format) -> None:
    """Give this rank's weights the values that engines compute with.

    Blocks are cut from what the rank has of a tensor, exactly those of the whole one where tensor parallelism cuts it
    between blocks. Elsewhere a block has scales of its own, which are as coarse.
    """
    for held in local.values():
        layout, dim = held.entry.rule.layout, held.shard.dim
        shapes = layout.hf_shapes(held.tensor.shape, held.shard)
        pieces = sorted(layout.pieces(held.tensor.size(dim), held.shard), key=lambda piece: piece.source)
        for index, (name, shape) in enumerate(zip(held.entry.hf, shapes, strict=True)):
            if not fp8.is_quantized(name, shape):
                continue
            rows = [held.tensor.narrow(dim, each.target, each.length) for each in pieces if each.index == index]
            [(weight, scales)] = quantize([torch.cat(rows, dim).contiguous()], powers_of_two=fp8.powers_of_two)
            values = dequantize(weight, scales, (BLOCK, BLOCK), held.tensor.dtype)
            for row, value in zip(rows, torch.split(values, [row.size(dim) for row in rows], dim), strict=True):
                row.copy_(value)


class _Choices:
    """The experts that one router chooses, pass by pass in the order of the micro-batches: recorded, then repeated.

    Megatron-core asks it as its own `RouterReplay`, which knows one micro-batch only.
    """

    def __init__(self) -> None:
        self._experts: deque[Tensor] = deque()
        self.repeats = False

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, choose: Callable[..., Any]
    ) -> tuple[Tensor, Tensor]:
        """scores [tokens, experts] -> scores and numbers of the chosen experts, [tokens, topk]."""
        if self.repeats:
            experts = self._experts.popleft()
            return scores.gather(1, experts), experts
        values, experts = choose(scores, topk, num_groups, group_topk)
        self._experts.append(experts)
        return values, experts


@contextmanager
def _choosing(routers: Sequence[TopKRouter], choices: Sequence[_Choices]) -> Iterator[None]:
    """Inside, routers record what they choose, the next time they repeat it."""
    for router, choice in zip(routers, choices, strict=True):
        router.router_replay = choice
    try:
        yield
    finally:
        for router, choice in zip(routers, choices, strict=True):
            router.router_replay, choice.repeats = None, True


@contextmanager
def _rounding_activations(model: Model, local: Mapping[str, LocalTensor], fp8: Fp8Format) -> Iterator[None]:
    """Inside, what is multiplied with FP8 weights is rounded to E4M3 too, as SGLang's kernels do on GPUs."""
    quantized = {held.tensor.data_ptr() for held in local.values() if _is_quantized(held, fp8)}
    with ExitStack() as stack:
        for part in (part for module in model.modules for part in module.modules()):
            weight = getattr(part, "weight1" if isinstance(part, GroupedExperts) else "weight", None)
            if not isinstance(weight, Tensor) or weight.data_ptr() not in quantized:
                continue
            stack.callback(part.register_forward_pre_hook(_round_first).remove)
            if isinstance(part, GroupedExperts):  # what goes into its second matrix
                stack.callback(setattr, part, "activate", part.activate)
                part.activate = partial(_rounded_result, part.activate)
        yield


def _is_quantized(held: LocalTensor, fp8: Fp8Format) -> bool:
    shapes = held.entry.rule.layout.hf_shapes(held.tensor.shape, held.shard)
    return any(fp8.is_quantized(name, shape) for name, shape in zip(held.entry.hf, shapes, strict=True))


def _round_first(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return round_activations(args[0]), *args[1:]


def _rounded_result(function: Callable[..., Tensor], *args: Any) -> Tensor:
    return round_activations(function(*args))


def round_activations(values: Tensor) -> Tensor:
    """[..., columns] in E4M3, each token with an fp32 scale for every 128 columns, and back."""
    columns = values.size(-1)
    padded = F.pad(values.float(), (0, -columns % BLOCK))
    groups = padded.view(*padded.shape[:-1], -1, BLOCK)
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=_LEAST) / LARGEST
    return ((groups / scales).to(E4M3).float() * scales).view(padded.shape)[..., :columns].to(values.dtype)
