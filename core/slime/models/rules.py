"""What the blocks' weight mappings are made of. No torch.

A family's mapping is a sum of blocks' rules: `embeddings.rules(...) + decoder.norm_rules() + gqa.rules(...) + ...`.
"""

from __future__ import annotations

from slime.weights.megatron.mapping import Layout, Rule

Rules = tuple[Rule, ...]
Layers = tuple[int, ...] | None

MEGATRON = "decoder.layers.{layer}."
HF = "model.layers.{layer}."
"""What the names of a decoder layer's tensors begin with."""

PLAIN = Layout()
GATE_UP = Layout(parts=(1, 1))
FUSED_GATE_UP = Layout(parts=(1, 1), fused=True)


def layer_rule(megatron: str, *hf: str, layout: Layout = PLAIN, layers: Layers = None) -> Rule:
    """A tensor of every decoder layer, or of `layers`: Megatron's name and those of the checkpoint, from inside it."""
    return Rule(MEGATRON + megatron, tuple(HF + name for name in hf), layout, layers)
