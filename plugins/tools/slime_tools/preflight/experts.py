"""Tokens on their way to experts of other hosts and back, by Megatron-core's own dispatcher (`alltoall`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from megatron_core_portable import apply_fixups, cpu_stands_in_for_cuda
from slime.errors import SlimeError
from slime_tools.preflight.clock import now

if TYPE_CHECKING:
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

NUM_TOKENS, HIDDEN, TOP_K, NUM_LOCAL = 1024, 4096, 8, 8
"""Of each rank; as in a large model, but for the number of experts."""


def exchange_tokens(rank: int, world_size: int, device: str) -> float:
    """Collective over the default process group, whose ranks share the experts. The experts are factors, so that the
    sums which come back are known.

    Returns:
        Bytes a second that this rank sent.

    Raises:
        SlimeError: other sums came back.
    """
    from megatron.core import parallel_state

    apply_fixups()
    with cpu_stands_in_for_cuda():
        parallel_state.initialize_model_parallel(
            expert_model_parallel_size=world_size, expert_tensor_parallel_size=1, create_gloo_process_groups=False
        )
        try:
            dispatcher = _dispatcher(rank, world_size)
            states = torch.randn(NUM_TOKENS, 1, HIDDEN, device=device)
            scores = torch.rand(NUM_TOKENS, NUM_LOCAL * world_size, device=device)
            chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(TOP_K).indices, value=True)
            weights = torch.where(chosen, scores, 0.0)
            _round_trip(dispatcher, states, chosen, weights)  # opens the connections
            start = now(device)
            found = _round_trip(dispatcher, states, chosen, weights)
            seconds = now(device) - start
            wanted = states * (weights @ _factors(scores.shape[1], device))[:, None, None]
        finally:
            parallel_state.destroy_model_parallel()
    if not torch.allclose(found, wanted, rtol=1e-4):
        what = "other sums came back from the experts of other hosts than were computed there"
        raise SlimeError(what, todo="See NCCL's version and the network's counters of errors.")
    return 2 * NUM_TOKENS * TOP_K * HIDDEN * states.element_size() / seconds


def _dispatcher(rank: int, world_size: int) -> MoEAlltoAllTokenDispatcher:
    from megatron.core.transformer.moe.moe_utils import get_default_pg_collection
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        num_moe_experts=NUM_LOCAL * world_size,
        moe_router_topk=TOP_K,
        expert_model_parallel_size=world_size,
        add_bias_linear=False,
    )
    own = [*range(rank * NUM_LOCAL, (rank + 1) * NUM_LOCAL)]
    return MoEAlltoAllTokenDispatcher(NUM_LOCAL, own, config, pg_collection=get_default_pg_collection())


def _factors(num_experts: int, device: str) -> torch.Tensor:
    return torch.arange(1.0, num_experts + 1.0, device=device)


def _round_trip(
    dispatcher: MoEAlltoAllTokenDispatcher, states: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    tokens, weights = dispatcher.dispatch_preprocess(states, chosen, weights)
    tokens, weights = dispatcher.token_dispatch(tokens, weights)
    tokens, counts, weights = dispatcher.dispatch_postprocess(tokens, weights)
    own = _factors(chosen.shape[1], str(states.device))[dispatcher.local_expert_indices]
    factors = own.repeat_interleave(counts.to(states.device))
    tokens = dispatcher.combine_preprocess(tokens * (weights * factors)[:, None])
    found: torch.Tensor = dispatcher.combine_postprocess(dispatcher.token_combine(tokens))
    return found
