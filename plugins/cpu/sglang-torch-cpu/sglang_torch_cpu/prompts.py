"""SGLang's prefill on a plain CPU: a prompt that several requests of a batch have in common is computed once.

Requests of a group come together. Stock SGLang would find the prompt in its prefix cache only after the first of them,
and deterministic inference on a CPU goes without that cache. A sequence does not depend on those beside it
(`sglang_torch_cpu.deterministic`), so all tokens stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partialmethod
from itertools import accumulate
from typing import Any

import torch

OF_SEQUENCES = (
    "req_pool_indices",
    "seq_lens",
    "seq_lens_cpu",
    "orig_seq_lens",
    "extend_seq_lens",
    "extend_prefix_lens",
)
OF_TOKENS = ("input_ids", "positions", "out_cache_loc")
LISTED = (
    "extend_prefix_lens_cpu",
    "extend_logprob_start_lens_cpu",
    "top_logprobs_nums",
    "token_ids_logprobs",
    "lora_ids",
    "rids",
    "mm_inputs",
)
"""Fields of SGLang's batch: tensors of one row a sequence, of one row a token, and lists of one entry a sequence."""


def install() -> None:
    """The platform calls this in each worker, before the model is built."""
    from sglang.srt.model_executor.runner.eager_runner import EagerRunner

    EagerRunner._execute_extend = partialmethod(_once, EagerRunner._execute_extend)


def _once(runner: Any, original: Callable[..., Any], batch: Any, *arguments: Any, **named: Any) -> Any:
    first = first_alike(batch) if _is_plain(runner.model_runner, batch) else range(batch.batch_size)
    if all(row == number for number, row in enumerate(first)):
        return original(runner, batch, *arguments, **named)
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    kept = sorted(set(first))
    found = original(runner, part(batch, kept), *arguments, **named)
    copy_cache(runner.model_runner.token_to_kv_pool, batch, first)
    if capturer := get_global_experts_capturer():
        copy_rows(capturer.device_cache.buffer, batch, kept, first)
    places = torch.tensor([kept.index(row) for row in first])
    # A model that is served without generating has no logits.
    name = "next_token_logits" if hasattr(found, "next_token_logits") else "embeddings"
    return replace(found, **{name: getattr(found, name).index_select(0, places)})


def _is_plain(model_runner: Any, batch: Any) -> bool:
    """Nothing is computed of the sequences but keys, values and the logits, or scores, of their last tokens."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    embedded = (batch.dimensions, batch.input_embeds, batch.replace_embeds, batch.token_type_ids, batch.mrope_positions)
    lists = (batch.lora_ids, batch.mm_inputs, batch.token_ids_logprobs, batch.top_logprobs_nums)
    starts = batch.extend_logprob_start_lens_cpu if batch.return_logprob else batch.extend_seq_lens_cpu
    return (
        batch.forward_mode is ForwardMode.EXTEND
        and isinstance(model_runner.token_to_kv_pool, MHATokenToKVPool)
        and model_runner.ps.pp_size == 1
        and batch.global_num_tokens_cpu is None
        and not batch.capture_hidden_mode.need_capture()
        and not batch.return_pooled_hidden_states
        and batch.multi_item_delimiter_indices is None
        and all(value is None for value in (*embedded, batch.encoder_lens, batch.spec_info))
        and not any(value for values in lists for value in values or ())
        and starts == batch.extend_seq_lens_cpu
    )


def first_alike(batch: Any) -> list[int]:
    """Of each sequence of a batch, the first one with the same tokens, if none of them was computed before."""
    seen: dict[tuple[int, ...], int] = {}
    first, tokens = [], batch.input_ids.tolist()
    lengths = batch.extend_seq_lens_cpu
    ends = list(accumulate(lengths))
    for number, (length, end, old) in enumerate(zip(lengths, ends, batch.extend_prefix_lens_cpu, strict=True)):
        first.append(number if old else seen.setdefault(tuple(tokens[end - length : end]), number))
    return first


def part(batch: Any, kept: Sequence[int]) -> Any:
    """The batch of the sequences `kept` alone, in this order."""
    sequences, tokens = torch.tensor(kept), _tokens_of(batch, kept)
    lengths = [batch.extend_seq_lens_cpu[row] for row in kept]
    fields: dict[str, Any] = {}
    for names, rows in ((OF_SEQUENCES, sequences), (OF_TOKENS, tokens)):
        for name in names:
            value = getattr(batch, name)
            fields[name] = None if value is None else value.index_select(0, rows)
    for name in LISTED:
        values = getattr(batch, name)
        fields[name] = None if values is None else [values[row] for row in kept]
    starts = torch.tensor([0, *accumulate(lengths)][:-1], dtype=batch.extend_start_loc.dtype)
    fields |= {"batch_size": len(kept), "extend_seq_lens_cpu": lengths, "extend_num_tokens": len(tokens)}
    fields |= {"extend_start_loc": starts, "seq_lens_sum": int(fields["seq_lens"].sum())}
    if batch.num_token_non_padded is not None:
        fields["num_token_non_padded"] = torch.full_like(batch.num_token_non_padded, len(tokens))
    return replace(batch, **fields, num_token_non_padded_cpu=len(tokens))


def copy_cache(pool: Any, batch: Any, first: Sequence[int]) -> None:
    """Give each sequence the keys and values of the one that stands for it, in every layer."""
    others = [row for row, representative in enumerate(first) if row != representative]
    target = batch.out_cache_loc[_tokens_of(batch, others)]
    source = batch.out_cache_loc[_tokens_of(batch, [first[row] for row in others])]
    for buffer in (*pool.k_buffer, *pool.v_buffer):
        buffer[target] = buffer[source]


def copy_rows(rows: torch.Tensor, batch: Any, kept: Sequence[int], first: Sequence[int]) -> None:
    """Spread the noted rows of the tokens of `kept` over the whole batch: SGLang takes those of all tokens
    afterwards."""
    lengths = batch.extend_seq_lens_cpu
    starts = dict(zip(kept, accumulate((lengths[row] for row in kept), initial=0), strict=False))
    index = torch.cat([torch.arange(starts[row], starts[row] + lengths[row]) for row in first])
    rows[: len(index)] = rows[index]


def _tokens_of(batch: Any, rows: Sequence[int]) -> torch.Tensor:
    """Where the new tokens of the sequences `rows` stand in the batch."""
    starts = [0, *accumulate(batch.extend_seq_lens_cpu)]
    return torch.cat([torch.arange(starts[row], starts[row + 1]) for row in rows])
