"""What a tiny model with sparse attention says in its config.json."""

from __future__ import annotations

from typing import Any

from slime_testing.tiny import DECODER

SPARSE_DECODER: dict[str, Any] = DECODER | {
    "hidden_size": 256,  # 128 learns more slowly beside latents of 512
    "index_head_dim": 128,
    "index_topk": 2048,
    "initializer_range": 0.06,  # about 1 / sqrt(hidden_size)
    "intermediate_size": 768,
    "kv_lora_rank": 512,
    "q_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""As `DECODER`, for sparse attention.

SGLang's kernels know one head size of the indexer, one size of a latent with its rotary part, and one number of keys
to choose while prefilling: those of the published models. Sequences of the arithmetic run are shorter than that
number, so every query attends to all keys.
"""
