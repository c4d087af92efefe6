"""SGLang on a plain CPU, with torch alone: no `sgl_kernel`, no AMX, no patched SGLang.

SGLang finds `activate` and `install` by its own entry-point groups, `sglang.srt.platforms` and `sglang.srt.plugins`,
in each of its processes. On a machine with GPUs both do nothing. A program that only serves may call `quick_start`.
"""

from __future__ import annotations

from sglang_torch_cpu.start import quick_start

__all__ = ["activate", "install", "quick_start"]


def activate() -> str | None:
    """The name of the platform class; None leaves a machine with GPUs to SGLang's own platforms."""
    import torch

    return None if torch.cuda.is_available() else "sglang_torch_cpu.platform.TorchCpuPlatform"


def install() -> None:
    """Register the hooks that SGLang applies before it builds anything."""
    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_torch_cpu.capture import make_host_cache
    from sglang_torch_cpu.deterministic import murmur_hash32
    from sglang_torch_cpu.parallel import DISPATCH_LOOP, dispatch_when_asked

    if not torch.cuda.is_available():
        # As hooks, because other plugins may put hooks of their own around the same functions.
        HookRegistry.register("sglang.srt.layers.sampler.murmur_hash32", murmur_hash32, HookType.REPLACE)
        HookRegistry.register(DISPATCH_LOOP, dispatch_when_asked, HookType.REPLACE)
        cache = "sglang.srt.state_capturer.base.BaseHostCache"
        HookRegistry.register(f"{cache}.__init__", make_host_cache, HookType.REPLACE)
