"""The trainer: Megatron-core's model, optimizer and schedules, one rank a process. `.trainer` is the whole."""

from megatron_core_portable import keep_flashinfer_out

keep_flashinfer_out()  # before a module of this package imports Megatron-core
