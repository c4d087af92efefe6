"""LoRA adapters in SGLang on a plain CPU: its backend in torch alone, which pins all that it prepares."""

from __future__ import annotations

from sglang_torch_cpu.parallel import around, unpinned


def install() -> None:
    """The platform calls this in each process, before the model is built."""
    from sglang.srt.lora.backend.torch_backend import TorchNativeLoRABackend
    from sglang.srt.lora.lora_manager import LoRAManager

    LoRAManager.__init__ = around(unpinned, LoRAManager.__init__)
    TorchNativeLoRABackend.prepare_lora_batch = around(unpinned, TorchNativeLoRABackend.prepare_lora_batch)
