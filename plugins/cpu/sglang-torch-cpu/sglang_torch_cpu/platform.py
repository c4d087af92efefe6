"""The platform that `sglang_torch_cpu.activate` names: a module of its own because it imports SGLang."""

from __future__ import annotations

from typing import Any

import psutil
import torch
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from sglang_torch_cpu import attention, deterministic, fp8, latent, lora, parallel, prompts


class TorchCpuPlatform(SRTPlatform):  # type: ignore[misc]
    """SGLang's questions about a device, answered for main memory and gloo (sizes in bytes)."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"

    def get_device_total_memory(self, device_id: int = 0) -> int:
        return int(psutil.virtual_memory().total)

    def get_current_memory_usage(self, device: torch.device | None = None) -> float:
        memory = psutil.virtual_memory()
        return float(memory.total - memory.available)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def get_device(self, local_rank: int = 0) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device: torch.device) -> None:
        """There is one CPU device."""

    def get_device_name(self, device_id: int = 0) -> str:
        return "cpu"

    def get_torch_distributed_backend_str(self) -> str:
        return "gloo"

    def is_pin_memory_available(self, device: torch.device | None = None) -> bool:
        return False

    def get_default_attention_backend(self) -> str:
        return deterministic.ATTENTION_BACKEND

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """SGLang calls this before it checks its arguments."""
        deterministic.allow_attention_backend()

    def init_backend(self) -> None:
        """SGLang calls this in each worker."""
        for part in (attention, deterministic, latent, fp8, lora, parallel, prompts):
            part.install()

    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return _class(MHATokenToKVPool)

    def get_mla_kv_pool_cls(self) -> type:
        return latent.kv_pool_class()

    def get_paged_allocator_cls(self) -> type:
        from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

        return _class(PagedTokenToKVPoolAllocator)


def _class(found: Any) -> type:
    assert isinstance(found, type)
    return found
