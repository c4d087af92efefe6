"""Layer specs that model families assemble: the same modules on CPU and CUDA, without Transformer Engine.

Megatron-core's local spec refuses sequence parallelism, context parallelism and packed sequences, and its other spec
needs Transformer Engine. These fill the slots of its own layers with norms, linears and a core attention that do all
three. `post_norm` puts a norm behind the output projection as well (sandwich norms).
"""

from slime.models.decoder.module import decoder_block, dense_or_moe_layer, transformer_layer
from slime.models.gqa.module import gqa
from slime.models.mlp.module import gated_mlp
from slime.models.moe.module import moe

__all__ = [
    "decoder_block",
    "dense_or_moe_layer",
    "gated_mlp",
    "gqa",
    "moe",
    "transformer_layer",
]
