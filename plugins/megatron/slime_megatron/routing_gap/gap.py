"""How much of the difference between engine and trainer is routing, in nats a token.

The trainer scores sampled tokens with the experts that the engine recorded, and with those that its own routers choose:

    routing      = |own experts - engine's experts|     what it costs that both choose differently
    same_experts = |engine - engine's experts|          what is left: precision, kernels, faults
    own_experts  = |engine - own experts|               the difference of a run that replays nothing

All are means of absolute differences. Routing and what is left may cancel or amplify each other: they do not add up.
Tokens of which nothing was recorded take the trainer's own experts in both.
"""

from __future__ import annotations

from collections.abc import Sequence

from slime_megatron.train.gaps import means, of_engine
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.step import score


def explain(
    model: Model, micro_batches: Sequence[LocalMicroBatch], *, replays: bool, is_quantized: bool = False
) -> dict[str, float]:
    """What each costs, as `slime_megatron.train.gaps.means`; collective.

    Args:
        micro_batches: as many on every rank.
        replays: the run trains with the engine's experts, so gap/routing is no part of its difference and left out;
            gap/own_experts says what the difference would be without.
        is_quantized: gap/same_experts is left out, as an explanation of quantised engines divides it.
    """
    own, same = score(model, micro_batches, replays=False), score(model, micro_batches)
    engine = of_engine(micro_batches)
    found = means({"routing": (own, same), "same_experts": (engine, same), "own_experts": (engine, own)}, micro_batches)
    left_out = {name for name, out in (("gap/routing", replays), ("gap/same_experts", is_quantized)) if out}
    return {name: value for name, value in found.items() if name not in left_out}
