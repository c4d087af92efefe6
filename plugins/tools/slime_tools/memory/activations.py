"""Bytes that a trainer rank keeps of a micro-batch for the backward pass, summed over the blocks of its layers.

Held against the peaks of `benchmarks/results/train-h200.md` (dense model); `benchmarks/memory.py` measures the others.
All activations are bf16. Shape letters as in `slime.models.blocks.RankTokens`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slime.layout import Grid
from slime.models.blocks import BF16, BuildingBlock, RankTokens
from slime.models.shapes import Model


@dataclass(frozen=True)
class Layer:
    """Bytes of one layer and micro-batch.

    Attributes:
        inputs: what full recomputation keeps: the layer's input.
        saved: what is kept for the backward pass, the input included.
        transient: more that is alive at the peak of the layer's backward pass: gradients, and inputs gathered again.
        lasting: what stays until the micro-batch is done, recomputation or not.
    """

    inputs: float
    saved: float
    transient: float
    lasting: float = 0.0


class Activations:
    """Of the layers of a model in a layout.

    Args:
        model: Megatron's keywords, the family's under `train.megatron`.
        tokens: T, of a full micro-batch.
        longest: tokens of the longest sequence.
        keys_a_row: as of `slime.models.blocks.RankTokens`.
    """

    def __init__(self, model: Model, grid: Grid, tokens: int, longest: int, keys_a_row: float = 1.0) -> None:
        self.model, self.grid = model, grid
        self.tokens = RankTokens(model, grid, tokens, longest, keys_a_row)

    def layer(self, blocks: Collection[BuildingBlock]) -> Layer:
        """One decoder layer: its input and the residual stream after attention, the inputs of attention and MLP behind
        their norms, and what its blocks keep."""
        tokens = self.tokens
        hidden = BF16 * self.model["hidden_size"] * tokens.shard
        normed = 0 if "layernorm" in tokens.recomputed else 2
        found = [block.saved(tokens) for block in blocks]
        saved = (2 + normed) * hidden + sum(each.kept for each in found)
        gathered = 2 * BF16 * self.model["hidden_size"] * tokens.rank_tokens * (self.grid.tp > 1)
        transient = max((each.transient for each in found), default=0.0)
        return Layer(hidden, saved, transient + gathered, sum(each.lasting for each in found))

    def head(
        self, vocab_size: int, chunk_tokens: int, *, tied: bool, drafting: bool, fp32_logits: bool
    ) -> tuple[float, float]:
        """Behind the last layer: kept (final norm, hidden states gathered), and alive at its own peak in addition
        (logits of a chunk, gradient of the hidden states).

        Args:
            drafting: a prediction layer behind it learns by the same head, which keeps a chunk of logits meanwhile.
            fp32_logits: the gradient of a chunk lies beside it, in bf16.
        """
        hidden, tp = BF16 * self.model["hidden_size"], self.grid.tp
        kept = hidden * (2 * self.tokens.shard + (self.tokens.rank_tokens if tp > 1 else 0))
        chunk = min(chunk_tokens, self.tokens.rank_tokens)
        times = 1 + drafting
        logits = (4 * times + BF16 if fp32_logits else BF16 * times) * chunk * vocab_size / tp
        sum_of_tied = 4 * vocab_size / tp * self.model["hidden_size"] if tied else 0
        return times * kept, hidden * self.tokens.rank_tokens + logits + sum_of_tied

    def stage(self, layers: Sequence[Layer], in_flight: float, head: tuple[float, float]) -> float:
        """Bytes at a stage's peak, in the backward pass of a layer or of the head.

        Args:
            in_flight: micro-batches under way.
            head: of `head` on the last stage, otherwise nothing.
        """
        held = sum(layer.lasting for layer in layers) * in_flight
        if not layers:
            return held + sum(head)
        if self.model.get("recompute_granularity") != "full":
            held += sum(layer.saved for layer in layers) * in_flight
            return held + max(sum(head), *(layer.transient for layer in layers))
        again, every = layers, self.model.get("recompute_num_layers") or 1
        if self.model.get("recompute_method") == "block":
            again, kept, every = layers[:every], layers[every:], 1
            held += sum(layer.saved for layer in kept) * in_flight
        held += sum(layer.inputs for layer in again[::every]) * in_flight
        live = sum(sorted((layer.saved for layer in again), reverse=True)[:every])
        return held + max(sum(head), live + max(layer.transient for layer in layers))
