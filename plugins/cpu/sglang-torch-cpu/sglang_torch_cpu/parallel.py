"""Data-parallel attention and expert parallelism in SGLang on a plain CPU.

Stock SGLang brings all of it but a few pieces that it writes for CUDA alone; here they are in torch. Besides, it lets
the processes of such an engine look for requests without a pause, or sleep for a second while the others wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import linear, silu
from torch.overrides import TorchFunctionMode

SLEEP_MS, DISPATCH_MS = 10, 1000
DISPATCH_LOOP = "sglang.srt.managers.data_parallel_controller.DataParallelController.event_loop"
"""SGLang's loop that hands requests to the data-parallel ranks of an engine, in a process of its own."""


def install() -> None:
    """The platform calls this in each process, before the model is built."""
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.layers import dp_attention
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.moe import fused_moe_native
    from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    GroupCoordinator.all_gather_into_tensor = GroupCoordinator._all_gather_into_tensor  # else an operator of CUDA's
    GroupCoordinator.reduce_scatter_tensor = GroupCoordinator._reduce_scatter_tensor
    GroupCoordinator.reduce_scatterv = reduce_scatter_rows
    dp_attention.memcpy_triton = copy_rows
    TorchNativeAttnBackend.get_cuda_graph_seq_len_fill_value = length_of_padding
    ForwardBatch.prepare_mlp_sync_batch = around(unpinned, ForwardBatch.prepare_mlp_sync_batch)
    fused_moe_native.moe_forward_native = around(experts_of_this_rank, fused_moe_native.moe_forward_native)
    IdleSleeper.maybe_sleep = around(sleep_shortly, IdleSleeper.maybe_sleep)


def around(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `replacement` with `original` and its own arguments."""

    def call(*arguments: Any, **named: Any) -> Any:
        return replacement(original, *arguments, **named)

    return call


def length_of_padding(backend: Any) -> int:
    """Sequences of this length fill a batch up to what other data-parallel ranks have."""
    return 1


def copy_rows(
    target: torch.Tensor, source: torch.Tensor, dim: int, start: torch.Tensor, num_rows: torch.Tensor, from_start: bool
) -> None:
    """Copy `num_rows` rows of `source` into `target` (both [rows, ...]), from its row `start` on; with `from_start`,
    from that of the source. `dim` is 0."""
    first, count = int(start), int(num_rows)
    if from_start:
        target[:count] = source[first : first + count]
    else:
        target[first : first + count] = source[:count]


def reduce_scatter_rows(
    group: Any, input_: torch.Tensor, output: torch.Tensor | None = None, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """The sum over ranks of [rows of all ranks, ...]; this rank's `sizes[rank]` rows of it (an equal part)."""
    total = input_.clone()
    torch.distributed.all_reduce(total, group=group.device_group)
    mine = torch.split(total, list(sizes) if sizes else len(total) // group.world_size)[group.rank_in_group]
    return mine if output is None else output.copy_(mine)


def experts_of_this_rank(
    original: Callable[..., torch.Tensor], layer: Any, x: torch.Tensor, topk_output: Any, config: Any
) -> torch.Tensor:
    """Around SGLang's loop over experts, which takes -1, an expert of another rank, for one of this rank.

    Args:
        layer: with `w13_weight` [experts of this rank, 2 * ffn, hidden] and `w2_weight` [experts, hidden, ffn].
        x: [tokens, hidden].
        topk_output: weights and ids (counted on this rank) [tokens, experts of a token].
    """
    if layer.moe_ep_size == 1:
        return original(layer, x, topk_output, config)
    weights, ids, _ = topk_output
    outputs = x.new_zeros(*ids.shape, x.shape[-1])
    for expert, (gate_up, down) in enumerate(zip(layer.w13_weight, layer.w2_weight, strict=True)):
        rows, slots = (ids == expert).nonzero(as_tuple=True)
        if len(rows):
            gate, up = linear(x[rows], gate_up).chunk(2, dim=-1)
            outputs[rows, slots] = linear(silu(gate) * up, down)
    mixed: torch.Tensor = (outputs.to(weights.dtype) * weights[..., None]).sum(dim=1).to(x.dtype)
    return mixed


class _NotPinned(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.pin_memory:
            return args[0]
        return function(*args, **{name: value for name, value in (kwargs or {}).items() if name != "pin_memory"})


def unpinned(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Pinned memory needs an accelerator."""
    with _NotPinned():
        return original(*arguments, **named)


def sleep_shortly(original: Callable[..., None], sleeper: Any) -> None:
    """Around the nap of an idle scheduler, which a request of its own ends. Data-parallel ranks work in step: what
    comes to one of them, such as a bucket of weights, waits for all."""
    from sglang.srt.runtime_context import get_server_args

    if get_server_args().dp_size > 1:
        sleeper.poller.poll(SLEEP_MS)
    else:
        original(sleeper)


def dispatch_when_asked(controller: Any) -> None:
    """Instead of the loop that hands requests to the data-parallel ranks and would take a core by asking for them."""
    from sglang.srt.managers.io_struct import sock_recv

    while True:
        controller.soft_watchdog.feed()
        if controller.recv_from_tokenizer.poll(DISPATCH_MS):
            controller._request_dispatcher(sock_recv(controller.recv_from_tokenizer))
