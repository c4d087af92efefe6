"""SGLang's own `ServerArgs`, as far as it can be built without a GPU."""

from __future__ import annotations

from typing import Any


def server_args(**fields: Any) -> Any:
    """Of a tiny mixture of experts on a CPU, with its silent changes done."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    from slime.config.paths import resolve

    load_plugins()
    common = {
        "model_path": str(resolve("pkg://slime_plugin_glm4/assets/glm4-moe-tiny")),
        "device": "cpu",
        "load_format": "dummy",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_overlap_schedule": True,
    }
    return ServerArgs(**{**common, **fields})
