"""Unmodified megatron-core 0.16 without Transformer Engine and apex, and on a CPU.

Every fix-up has a test that fails once upstream no longer needs it.
"""

from megatron_core_portable.accumulate import add_product
from megatron_core_portable.adam import FusedAdam
from megatron_core_portable.cpu import cpu_stands_in_for_cuda
from megatron_core_portable.fixups import apply_fixups
from megatron_core_portable.imports import keep_flashinfer_out

__all__ = ["FusedAdam", "add_product", "apply_fixups", "cpu_stands_in_for_cuda", "keep_flashinfer_out"]
