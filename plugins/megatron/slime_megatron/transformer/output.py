"""The end of the model: final norm and output layer, and the log-probs and entropies made of it."""

from __future__ import annotations

from slime.models.blocks import BuildingBlock
from slime.models.mapping import Layout, Rule
from slime.models.rules import Rules
from slime.models.shapes import HIDDEN_NORM, Block, Cut, Shape


def rules(vocab_size: int, *, tied: bool, norm_bias: bool = False) -> Rules:
    """Final norm, with a bias where `norm_bias`, and output layer [vocab_size, hidden].

    With tied embeddings Megatron's last pipeline stage holds its own copy of the embeddings as output layer.
    """
    own, layout = "lm_head.weight", Layout(num_rows=vocab_size)
    hf, untied = ("model.embed_tokens.weight", own) if tied else (own, "")
    kinds = ("weight", "bias") if norm_bias else ("weight",)
    return BLOCK.state(
        *(Rule(f"decoder.final_layernorm.{kind}", (f"model.norm.{kind}",)) for kind in kinds),
        Rule("output_layer.weight", (hf,), layout, exported=not tied, untied=untied),
    )


SHAPES = {
    "decoder.final_layernorm.weight": HIDDEN_NORM,
    "decoder.final_layernorm.bias": HIDDEN_NORM,
    "output_layer.weight": Shape(lambda m: (m["vocab_size"], m["hidden_size"]), Cut.tensor, Block.output),
}
BLOCK = BuildingBlock(SHAPES)
