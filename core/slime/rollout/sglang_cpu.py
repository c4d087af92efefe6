"""SGLang on a plain CPU, by SGLang's own platform mechanism (entry-point group `sglang.srt.platforms`).

Stock SGLang then serves with torch-native attention: no `sgl_kernel`, no AMX, no patch.
"""

from __future__ import annotations


def activate() -> str | None:
    """SGLang calls this in each of its processes; None leaves a machine with GPUs to SGLang's own platforms."""
    import torch

    return None if torch.cuda.is_available() else "slime.rollout.sglang_cpu_platform.TorchCpuPlatform"
