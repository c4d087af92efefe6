"""What the blocks' weight mappings are made of. No torch.

A family's mapping is a sum of blocks' rules: `embeddings.rules(...) + decoder.norm_rules() + gqa.rules(...) + ...`.
"""

from __future__ import annotations

from slime.models.mapping import HF, MEGATRON, Layout, Rule

Rules = tuple[Rule, ...]
Layers = tuple[int, ...] | None

PLAIN = Layout()
GATE_UP = Layout(parts=(1, 1))
FUSED_GATE_UP = Layout(parts=(1, 1), fused=True)


def layer_rule(megatron: str, *hf: str, layout: Layout = PLAIN, layers: Layers = None) -> Rule:
    """A tensor of every decoder layer, or of `layers`: Megatron's name and those of the checkpoint, from inside it."""
    return Rule(MEGATRON + megatron, tuple(HF + name for name in hf), layout, layers)
