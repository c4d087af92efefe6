"""Megatron-core's random-number tracker on the CPU generator: recomputation saves and restores its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def use_cpu_rng() -> None:
    """Bind Megatron-core's CUDA generator states and its tracker to torch's CPU generator."""
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda device="cuda", clone=False, graph_safe=False: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, device=-1, graph_safe=True: torch.set_rng_state(state)
    if random.CudaRNGStatesTracker.__name__ != "CpuRNGStatesTracker":
        random.CudaRNGStatesTracker = _cpu_tracker(random.CudaRNGStatesTracker)


def _cpu_tracker(base: type) -> type:
    class CpuRNGStatesTracker(base):  # type: ignore[misc]
        """Named generator states, each forked from and back to the CPU generator."""

        def add(self, name: str, seed: int) -> None:
            assert seed not in self.seeds_, f"seed {seed} is taken"
            assert name not in self.states_, f"random state {name} is taken"
            self._is_initialized = True
            self.seeds_.add(seed)
            self.states_[name] = torch.Generator().manual_seed(seed).get_state()

        @contextmanager
        def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
            outside = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outside)

    return CpuRNGStatesTracker
