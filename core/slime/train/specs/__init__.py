"""Layer specs that model families assemble: the same modules on CPU and CUDA, without Transformer Engine.

Megatron-core's local spec refuses sequence parallelism, context parallelism and packed sequences, and its other spec
needs Transformer Engine. These fill the slots of its own layers with norms, linears and a core attention that do all
three. `post_norm` puts a norm behind the output projection as well (sandwich norms).
"""

from slime.train.specs.attention import gqa, mla
from slime.train.specs.layers import decoder_block, dense_or_moe_layer, gated_mlp, moe, transformer_layer
from slime.train.specs.mtp import mtp_layer

__all__ = ["decoder_block", "dense_or_moe_layer", "gated_mlp", "gqa", "mla", "moe", "mtp_layer", "transformer_layer"]
