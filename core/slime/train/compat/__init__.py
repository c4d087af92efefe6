"""What unmodified megatron-core 0.16 needs to run without Transformer Engine, and on a CPU.

`cpu` holds the scoped context "CPU stands in for CUDA", `fixups` the names that Megatron-core leaves undefined or
wrong, `adam` the optimizer its checkpoint code expects. Every fix-up has a test that fails once upstream needs it
no longer.
"""

from slime.train.compat.cpu import cpu_stands_in_for_cuda
from slime.train.compat.fixups import apply_fixups

__all__ = ["apply_fixups", "cpu_stands_in_for_cuda"]
