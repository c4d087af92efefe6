"""An engine whose log-probs are to the bit those that a trainer computes of the same tokens (`model.batch_invariant`).

Both have the operators of the library `batch_invariant`. SGLang's own deterministic mode gives a request the same bits
in any batch; its trainer would need all of its kernels, some of which are of CUDA alone, round at other places, or
compute a token that is decoded otherwise than one of a prompt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from batch_invariant import experts, rows
from batch_invariant.attention import attention
from batch_invariant.products import product, replace_products
from slime.errors import SlimeError

WANTED = "SLIME_BATCH_INVARIANT"
"""Variable of the engines that are to be so."""
MIXTURES = ("glm4_moe.Glm4MoeSparseMoeBlock", "qwen3_moe.Qwen3MoeSparseMoeBlock")
"""SGLang's mixtures of experts that are a router (`gate`, `topk`), `experts` and, if any, `shared_experts` whose result
is added."""
_LAYERS, _BACKENDS = "sglang.srt.layers", "sglang.srt.layers.attention"


def install() -> None:
    """In each of an engine's processes, before SGLang builds anything."""
    if os.environ.get(WANTED, "0") == "0":
        return
    os.environ |= {"SGLANG_ROPE_CACHE_FP32": "1", "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "1"}
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import add_radix_supported_deterministic_attention_backend_choices

    HookRegistry.register(f"{_LAYERS}.layernorm.RMSNorm.forward", norm, HookType.REPLACE)
    HookRegistry.register(f"{_LAYERS}.activation.SiluAndMul.forward", activation, HookType.REPLACE)
    HookRegistry.register(f"{_LAYERS}.rotary_embedding.base.RotaryEmbedding.forward", turn, HookType.REPLACE)
    HookRegistry.register(f"{_LAYERS}.sampler.Sampler.forward", draw, HookType.AROUND)
    for name in MIXTURES:
        HookRegistry.register(f"sglang.srt.models.{name}.forward", mixture, HookType.REPLACE)
    HookRegistry.register(f"{_LAYERS}.moe.topk.TopK.forward", refuse, HookType.REPLACE)
    if torch.cuda.is_available():
        enable = "sglang.srt.batch_invariant_ops.enable_batch_invariant_mode"
        HookRegistry.register(enable, replace_products_on_gpu, HookType.REPLACE)
        HookRegistry.register(f"{_BACKENDS}.triton_backend.TritonAttnBackend.__init__", by_triton, HookType.AFTER)
    else:
        add_radix_supported_deterministic_attention_backend_choices(["torch_native"])
        native = f"{_BACKENDS}.torch_native_backend.TorchNativeAttnBackend.__init__"
        HookRegistry.register(native, by_torch, HookType.AFTER)


def norm(module: Any, x: Tensor, residual: Tensor | None = None, post_residual_addition: None = None) -> Any:
    """Instead of SGLang's norm, which in its deterministic mode does not round what it adds to the residual stream."""
    assert post_residual_addition is None
    x = x if residual is None else residual + x
    found = rows.rms_norm(x, module.weight, module.variance_epsilon)
    return found if residual is None else (found, x)


def activation(module: Any, gate_up: Tensor) -> Tensor:
    """Instead of SGLang's SwiGLU."""
    return rows.swiglu(gate_up)


def turn(
    module: Any,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    offsets: None = None,
    fused_set_kv_buffer_arg: None = None,
) -> tuple[Tensor, Tensor]:
    """Instead of SGLang's rotary embedding: query and key [tokens, heads * size]."""
    assert offsets is None
    assert fused_set_kv_buffer_arg is None
    cos, sin = module.cos_sin_cache.index_select(0, positions.flatten()).chunk(2, dim=-1)
    assert cos.dtype == torch.float32
    turned = [
        rows.rotate(heads.view(len(heads), -1, module.head_size), cos, sin, not module.is_neox_style).view(heads.shape)
        for heads in (query, key)
    ]
    return turned[0], turned[1]


def mixture(block: Any, hidden: Tensor, _: Any = None) -> Tensor:
    """Instead of a whole mixture of experts [tokens, hidden size]: SGLang's rounds logits and scales in other places by
    family and device."""
    from sglang.srt.layers.moe.topk import capture_routed_experts_if_allowed

    config, layer = block.topk.topk_config, block.experts
    assert config.num_fused_shared_experts == 0
    sigmoid = config.correction_bias is not None
    how = experts.Routing(config.top_k, sigmoid, config.renormalize, config.routed_scaling_factor or 1.0)
    logits = product(hidden.float(), block.gate.weight.float().t())
    chosen = experts.choose(logits, how, config.correction_bias)
    capture_routed_experts_if_allowed(config, block.topk.layer_id, chosen.int())
    weights = experts.weigh(logits, chosen, how)
    found = experts.mixture(hidden, chosen, weights, layer.w13_weight.transpose(1, 2), layer.w2_weight.transpose(1, 2))
    shared = getattr(block, "shared_experts", None)
    return found if shared is None else found + shared(hidden)


def refuse(router: Any, *_: Any, **__: Any) -> None:
    """Instead of the router of any other mixture of experts, which nobody has compared with the trainer's."""
    what = "does not hold for this model: its engine's mixture of experts is none of those that are known"
    raise SlimeError(what, where="model.batch_invariant", todo="Set it to false.")


def draw(
    original: Callable[..., Tensor], sampler: Any, output: Any, sampling: Any, return_logprob: bool, *others: Any
) -> Tensor:
    """Around SGLang's sampler, which takes the logarithm of a probability that it has rounded."""
    if not return_logprob:
        return original(sampler, output, sampling, return_logprob, *others)
    logits = output.next_token_logits.clone()  # SGLang makes probabilities where they are
    tokens = original(sampler, output, sampling, return_logprob, *others)
    output.next_token_logprobs = rows.logprob(_statistics(logits, tokens, sampling.temperatures.flatten()))
    return tokens


def _statistics(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    if not logits.is_cuda:
        return rows.statistics(logits, tokens, temperatures)
    from vocabulary_logprobs.kernels import statistics

    return statistics(logits, tokens, temperatures)


def replace_products_on_gpu(*_: Any) -> None:
    """Instead of SGLang's batch-invariant mode."""
    replace_products("CUDA")


def by_triton(_: None, backend: Any, *__: Any, **___: Any) -> None:
    """After SGLang has made its attention by Triton."""
    backend.extend_attention_fwd_unified = extend
    backend.decode_attention_fwd = decode


def extend(
    query: Tensor,
    out: Tensor,
    key: Tensor,
    value: Tensor,
    k_scale: float,
    v_scale: float,
    query_borders: Tensor,
    key_borders: Tensor,
    index: Tensor,
    prefix_lengths: Tensor,
    most_queries: int,
    *,
    sm_scale: float,
    **others: Any,
) -> None:
    """Instead of SGLang's kernel for parts of prompts."""
    assert k_scale == v_scale == 1.0
    _check(key, others)
    attention(query, key, value, index, query_borders, key_borders, most_queries, sm_scale, out)


def decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    key_borders: Tensor,
    index: Tensor,
    scores: Tensor,
    normalizers: Tensor,
    num_splits: Tensor,
    most_splits: int,
    sm_scale: float,
    k_scale: float,
    v_scale: float,
    **others: Any,
) -> None:
    """Instead of SGLang's kernel for one token a sequence, which cuts its keys and joins what it finds of them."""
    assert k_scale == v_scale == 1.0
    _check(key, others)
    borders = torch.arange(len(query) + 1, dtype=torch.int32, device=query.device)
    attention(query, key, value, index, borders, key_borders, 1, sm_scale, out)


def _check(key: Tensor, options: Mapping[str, Any]) -> None:
    """Of a model that the rules let through, all is plain causal attention over slots of single tokens."""
    assert key.dim() == 3
    assert all(options.get(name) is None for name in ("custom_mask", "sinks", "score_mod"))
    assert not options.get("logit_cap")
    assert options.get("sliding_window_size", -1) < 0


def by_torch(_: None, backend: Any, *__: Any, **___: Any) -> None:
    """After SGLang has made its attention by torch."""
    backend._run_sdpa_forward_extend = extend_on_cpu
    backend._run_sdpa_forward_decode = decode_on_cpu


def extend_on_cpu(
    query: Tensor,
    output: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    requests: Tensor,
    lengths: Tensor,
    old: Tensor,
    new: Tensor,
    encoder_lens: None = None,
    *,
    scaling: float,
    sliding_window_size: int | None = None,
    **_: Any,
) -> Tensor:
    """Instead of SGLang's attention of parts of prompts. `slots` [requests, longest] of every request's tokens."""
    assert encoder_lens is None
    assert sliding_window_size in (None, -1)
    totals, counts = lengths.tolist(), new.tolist()
    index = torch.cat([slots[request, :total] for request, total in zip(requests.tolist(), totals, strict=True)])
    of_queries, of_keys = (torch.tensor([0, *accumulate(each)]) for each in (counts, totals))
    return attention(query, key, value, index, of_queries, of_keys, max(counts), scaling, output)


def decode_on_cpu(
    query: Tensor,
    output: Tensor,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    requests: Tensor,
    lengths: Tensor,
    encoder_lens: None = None,
    **options: Any,
) -> Tensor:
    """Instead of SGLang's attention of one token a sequence."""
    one = torch.ones_like(lengths)
    return extend_on_cpu(query, output, key, value, slots, requests, lengths, lengths - one, one, **options)
