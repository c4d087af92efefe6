"""Layer specs that model families assemble: the same modules on CPU and CUDA, without Transformer Engine.

Megatron-core's local spec refuses sequence parallelism, context parallelism and packed sequences, and its other spec
needs Transformer Engine. These fill the slots of its own layers with norms, linears and a core attention that do all
three. `post_norm` puts a norm behind the output projection as well (sandwich norms).
"""

from slime_megatron.transformer.decoder.module import decoder_block, transformer_layer
from slime_megatron.transformer.gqa.module import gqa
from slime_megatron.transformer.mlp.module import gated_mlp

__all__ = [
    "decoder_block",
    "gated_mlp",
    "gqa",
    "transformer_layer",
]
