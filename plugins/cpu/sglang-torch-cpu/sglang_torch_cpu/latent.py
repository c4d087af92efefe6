"""Multi-head latent attention in SGLang on a plain CPU: the cache holds the latent, and attention works on it.

Stock SGLang lacks two pieces: a rule for its torch-native attention, without which a prefill would hand that
uncompressed keys and values, which are not what the cache holds; and a pool of latents that takes the one keyword that
the factory passes for platforms of others.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """The platform calls this in each worker, before the model is built."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry

    from sglang_torch_cpu.deterministic import ATTENTION_BACKEND

    AttentionBackendRegistry.register(ATTENTION_BACKEND, on_the_latent)


def on_the_latent(attention: Any, forward_batch: Any) -> Any:
    """SGLang asks how to compute a batch, prefill or decode: always on the latent."""
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    return AttnForwardMethod.MLA


def kv_pool_class() -> type:
    """SGLang's pool of latents, which the factory for platforms of others calls with `index_head_dim` too."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    class LatentKVPool(MLATokenToKVPool):  # type: ignore[misc]
        def __init__(self, *args: Any, index_head_dim: int | None = None, **kwargs: Any) -> None:
            assert index_head_dim is None, "sparse attention keeps a second cache, which this pool has not"
            super().__init__(*args, **kwargs)

    return LatentKVPool
