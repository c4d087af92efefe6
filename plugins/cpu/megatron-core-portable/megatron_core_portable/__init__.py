"""What unmodified megatron-core 0.16 needs to run without Transformer Engine and apex, and on a CPU.

`cpu` holds the scoped context "CPU stands in for CUDA", `fixups` the names that Megatron-core leaves undefined or
wrong, `adam` the optimizer its checkpoint code expects, `accumulate` the sum of weight gradients, `imports` what
Megatron-core is to do without. Every fix-up has a test that fails once upstream no longer needs it.
"""

from megatron_core_portable.accumulate import add_product
from megatron_core_portable.adam import FusedAdam
from megatron_core_portable.cpu import cpu_stands_in_for_cuda
from megatron_core_portable.fixups import apply_fixups
from megatron_core_portable.imports import keep_flashinfer_out

__all__ = ["FusedAdam", "add_product", "apply_fixups", "cpu_stands_in_for_cuda", "keep_flashinfer_out"]
