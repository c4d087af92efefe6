"""Gated MLP: names, shapes and costs. Its keywords are those of `slime_megatron.transformer.decoder`. No torch."""

from __future__ import annotations

from slime.models.blocks import BF16, BuildingBlock, RankTokens, Saved
from slime.models.rules import FUSED_GATE_UP, GATE_UP, Layers, Rules, layer_rule
from slime.models.shapes import Block, Cut, gated


def rules(layers: Layers = None, *, megatron: str = "mlp.", hf: str = "mlp.") -> Rules:
    """Gated MLP with gate and up projections of their own."""
    return BLOCK.state(
        layer_rule(
            f"{megatron}linear_fc1.weight",
            f"{hf}gate_proj.weight",
            f"{hf}up_proj.weight",
            layout=GATE_UP,
            layers=layers,
        ),
        layer_rule(f"{megatron}linear_fc2.weight", f"{hf}down_proj.weight", layers=layers),
    )


def fused_rules(layers: Layers = None) -> Rules:
    """Gated MLP whose checkpoint has gate and up in a single tensor, the rows of gate first."""
    return BLOCK.state(
        layer_rule("mlp.linear_fc1.weight", "mlp.gate_up_proj.weight", layout=FUSED_GATE_UP, layers=layers),
        layer_rule("mlp.linear_fc2.weight", "mlp.down_proj.weight", layers=layers),
    )


SHAPES = {f"mlp.{name}": shape for name, shape in gated("ffn_hidden_size", Cut.tensor, Block.mlp).items()}


def gate_up(size: float, tokens: float) -> Saved:
    """[gate | up] and the activation; gradient of the former."""
    return Saved(BF16 * 3 * size * tokens, BF16 * 2 * size * tokens)


class _Dense(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        """Nothing but what is computed again, where the MLP is recomputed."""
        kept, transient, _ = gate_up(tokens.model["ffn_hidden_size"] / tokens.grid.tp, tokens.rank_tokens)
        again = "mlp" in tokens.recomputed
        return Saved(0.0 if again else kept, transient + kept * again)


BLOCK = _Dense(SHAPES)
