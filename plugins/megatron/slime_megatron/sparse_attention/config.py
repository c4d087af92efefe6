"""What Megatron-core's config of latent attention lacks for sparse attention with shared indices."""

from __future__ import annotations

from dataclasses import dataclass, field

from megatron.core.transformer.transformer_config import MLATransformerConfig


@dataclass
class SparseLatentConfig(MLATransformerConfig):  # type: ignore[misc]
    """Beside Megatron-core's own `dsa_indexer_*`: head size and number of heads, topk, loss coefficient."""

    dsa_indexer_layers: list[bool] = field(default_factory=list)
    """For every layer of the model: does it choose keys (True), or reuse those that the latest such layer chose?"""

    dsa_indexer_rotary_interleaved: bool = False
    """Whether the indexer rotates neighbouring dimensions (GPT-J) instead of the two halves (GPT-NeoX)."""

    dsa_indexer_use_sparse_loss: bool = True
    """Only the loss over the chosen keys exists; with as many as the longest sequence has it is the dense one."""

    def source_layer(self, layer_number: int) -> int:
        """Number, from 1, of the layer whose chosen keys layer `layer_number` attends to.

        A multi-token prediction layer, which is numbered behind the last, always chooses for itself.
        """
        if layer_number > len(self.dsa_indexer_layers):
            return layer_number
        return max(number for number in range(1, layer_number + 1) if self.dsa_indexer_layers[number - 1])
