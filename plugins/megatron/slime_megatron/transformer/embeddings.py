"""Token embeddings: keywords, names and shapes. The module is Megatron-core's. No torch."""

from __future__ import annotations

from typing import Any

from slime.models.blocks import BuildingBlock
from slime.models.config_reader import ConfigReader
from slime.models.mapping import Layout, Rule
from slime.models.rules import Rules
from slime.models.shapes import Block, Cut, Shape


def keywords(reader: ConfigReader) -> dict[str, Any]:
    """Vocabulary (without padding), context length and tied embeddings, as `GPTModel` keywords."""
    return {
        "vocab_size": reader.get("vocab_size"),
        "max_sequence_length": reader.get("max_position_embeddings"),
        "share_embeddings_and_output_weights": reader.get("tie_word_embeddings", False),
    }


def rules(vocab_size: int) -> Rules:
    """Token embeddings [vocab_size, hidden]."""
    layout = Layout(num_rows=vocab_size)
    return BLOCK.state(Rule("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), layout))


SHAPES = {
    "embedding.word_embeddings.weight": Shape(
        lambda m: (m["vocab_size"], m["hidden_size"]), Cut.tensor, Block.embedding
    ),
}
BLOCK = BuildingBlock(SHAPES)
