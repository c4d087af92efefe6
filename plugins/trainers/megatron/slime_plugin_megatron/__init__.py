"""The trainer: Megatron-core's model, optimizer and schedules, one rank a process. `.trainer` is the whole."""
