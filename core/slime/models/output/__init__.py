"""The end of the model: final norm and output layer, and the log-probs and entropies made of it."""

from __future__ import annotations

from slime.models.rules import Rules
from slime.weights.megatron.mapping import Layout, Rule


def rules(vocab_size: int, *, tied: bool) -> Rules:
    """Final norm and output layer [vocab_size, hidden].

    With tied embeddings Megatron's last pipeline stage holds its own copy of the embeddings as output layer.
    """
    hf = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return (
        Rule("decoder.final_layernorm.weight", ("model.norm.weight",)),
        Rule("output_layer.weight", (hf,), Layout(num_rows=vocab_size), exported=not tied),
    )
