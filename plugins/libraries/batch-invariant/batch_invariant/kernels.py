"""The same operators on a GPU. Blocks have one size whatever the number of rows, and every sum is made by one program,
from the first entry to the last.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS, _GROUP = 128, 128, 8
"""Of the part of a product that a program makes, and rows of parts that are made one after the other."""
_QUERIES, _KEYS = 64, 64
_EXPERT_ROWS = 64
"""Of an expert in a program: tokens that are decoded give each expert few."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """[rows, columns] of left [rows, inner] and right [inner, columns]: summed in fp32, rounded once. TF32 plays no
    part."""
    (rows, inner), columns = left.shape, right.shape[1]
    out = torch.empty(rows, columns, dtype=left.dtype, device=left.device)
    if not rows:
        return out
    grid = (triton.cdiv(rows, _ROWS) * triton.cdiv(columns, _COLUMNS),)
    wide = left.dtype == torch.float32
    _product[grid](
        left,
        right,
        out,
        rows,
        columns,
        inner,
        *left.stride(),
        *right.stride(),
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
        INNER=32 if wide else 64,
        GROUP=_GROUP,
        num_warps=8,
        num_stages=2 if wide else 3,
    )
    return out


def product_by_expert(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """[r, n]: rows [r, k] times the matrix of each row's expert, of matrices [e, k, n]. As `product`; the host does not
    wait, and as many programs start as the rows could need.

    Args:
        ends: [e] where the rows of each expert end, of which those of the first come first.
    """
    (num_rows, inner), (num_experts, _, columns) = rows.shape, matrices.shape
    out = torch.empty(num_rows, columns, dtype=rows.dtype, device=rows.device)
    if not num_rows:
        return out
    parts = (ends.diff(prepend=ends.new_zeros(1)) + _EXPERT_ROWS - 1) // _EXPERT_ROWS
    most_parts = min(num_rows, num_rows // _EXPERT_ROWS + num_experts)
    wide = rows.dtype == torch.float32
    _product_by_expert[(triton.cdiv(columns, _COLUMNS), most_parts)](
        rows,
        matrices,
        out,
        ends.to(torch.int32),
        parts.cumsum(0).to(torch.int32),
        columns,
        inner,
        *rows.stride(),
        *matrices.stride(),
        EXPERTS=num_experts,
        BLOCK=triton.next_power_of_2(num_experts),
        ROWS=_EXPERT_ROWS,
        COLUMNS=_COLUMNS,
        INNER=32 if wide else 64,
        num_warps=4,
        num_stages=2 if wide else 3,
    )
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `batch_invariant.rows.rms_norm`."""
    rows = x.reshape(-1, x.size(-1)).contiguous()
    out = torch.empty_like(rows)
    block = triton.next_power_of_2(rows.size(1))
    sizes = {"HIDDEN": rows.size(1), "BLOCK": block, "num_warps": min(16, max(1, block // 512))}
    if len(rows):
        _rms_norm[(len(rows),)](rows, weight, out, eps, **sizes)
    return out.view(x.shape)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index: Tensor,
    query_borders: Tensor,
    key_borders: Tensor,
    most_queries: int,
    scale: float,
    out: Tensor,
) -> None:
    """See `batch_invariant.attention.attention`; borders and index are of any integers. Heads that share keys are rows
    of one part, so a token that is decoded fills as many rows as share a key-value head."""
    share = query.size(1) // key.size(1)
    assert all(x.stride(-1) == 1 for x in (query, key, value, out)), "heads lie in one piece"
    grid = (triton.cdiv(most_queries * share, _QUERIES), key.size(1), query_borders.size(0) - 1)
    _attention[grid](
        query,
        key,
        value,
        index,
        query_borders,
        key_borders,
        out,
        scale,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *out.stride()[:2],
        SHARE=share,
        SIZE=query.size(2),
        OF_VALUE=value.size(2),
        BLOCK=triton.next_power_of_2(query.size(2)),
        BLOCK_OF_VALUE=triton.next_power_of_2(value.size(2)),
        QUERIES=_QUERIES,
        KEYS=_KEYS,
        num_warps=4,
        num_stages=2,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    left,
    right,
    out,
    num_rows,
    num_columns,
    num_inner,
    left_row,
    left_inner,
    right_inner,
    right_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
):
    number, row_parts = tl.program_id(0), tl.cdiv(num_rows, ROWS)
    of_group = GROUP * tl.cdiv(num_columns, COLUMNS)
    first = (number // of_group) * GROUP
    height = tl.minimum(row_parts - first, GROUP)
    row = (first + (number % of_group) % height) * ROWS + tl.arange(0, ROWS)
    column = ((number % of_group) // height) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    # Rows and columns beyond the last are those from the first on, which are not stored.
    lefts = left + (row % num_rows).to(tl.int64)[:, None] * left_row + inner[None, :] * left_inner
    rights = right + inner[:, None] * right_inner + (column % num_columns).to(tl.int64)[None, :] * right_column
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, num_inner, INNER):
        a = tl.load(lefts, mask=inner[None, :] < num_inner - begin, other=0.0)
        b = tl.load(rights, mask=inner[:, None] < num_inner - begin, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        lefts += INNER * left_inner
        rights += INNER * right_inner
    place = out + row.to(tl.int64)[:, None] * num_columns + column[None, :]
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _product_by_expert(  # type: ignore[no-untyped-def]
    rows,
    matrices,
    out,
    row_ends,
    part_ends,
    num_columns,
    num_inner,
    rows_row,
    rows_inner,
    matrix,
    matrix_inner,
    matrix_column,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    part, number = tl.program_id(1), tl.arange(0, BLOCK)
    ends_of_parts = tl.load(part_ends + number, mask=number < EXPERTS, other=2147483647)
    expert = tl.sum((ends_of_parts <= part).to(tl.int32), axis=0)
    if expert >= EXPERTS:
        return
    first_part = tl.load(part_ends + expert - 1, mask=expert > 0, other=0)
    begin = tl.load(row_ends + expert - 1, mask=expert > 0, other=0) + (part - first_part) * ROWS
    row = begin + tl.arange(0, ROWS)
    is_row = row < tl.load(row_ends + expert)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < num_columns
    inner = tl.arange(0, INNER)
    lefts = rows + row.to(tl.int64)[:, None] * rows_row + inner[None, :] * rows_inner
    rights = matrices + expert.to(tl.int64) * matrix
    rights += inner[:, None] * matrix_inner + column.to(tl.int64)[None, :] * matrix_column
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, num_inner, INNER):
        is_inner = inner < num_inner - start
        a = tl.load(lefts, mask=is_row[:, None] & is_inner[None, :], other=0.0)
        b = tl.load(rights, mask=is_inner[:, None] & is_column[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        lefts += INNER * rows_inner
        rights += INNER * matrix_inner
    place = out + row.to(tl.int64)[:, None] * num_columns + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm(rows, weight, out, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = column < HIDDEN
    x = tl.load(rows + row * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * HIDDEN + column, x * scale * factor, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _attention(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    index,
    query_borders,
    key_borders,
    out,
    scale,
    query_token,
    query_head,
    key_slot,
    key_head,
    value_slot,
    value_head,
    out_token,
    out_head,
    SHARE: tl.constexpr,
    SIZE: tl.constexpr,
    OF_VALUE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_OF_VALUE: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    part, group, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_query = tl.load(query_borders + sequence).to(tl.int64)
    num_queries = (tl.load(query_borders + sequence + 1) - first_query).to(tl.int32)
    first_key = tl.load(key_borders + sequence).to(tl.int64)
    num_keys = (tl.load(key_borders + sequence + 1) - first_key).to(tl.int32)
    row = part * QUERIES + tl.arange(0, QUERIES)
    token, head = row // SHARE, group * SHARE + row % SHARE
    is_query = token < num_queries
    # What is no query sees what the last one does: what sees nothing would be NaN.
    last_seen = num_keys - num_queries + tl.minimum(token, num_queries - 1)
    feature, of_value = tl.arange(0, BLOCK), tl.arange(0, BLOCK_OF_VALUE)
    from_query = (first_query + token) * query_token + head * query_head
    q = tl.load(
        query + from_query[:, None] + feature[None, :],
        mask=is_query[:, None] & (feature[None, :] < SIZE),
        other=0.0,
    )
    peak = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mean = tl.zeros([QUERIES, BLOCK_OF_VALUE], tl.float32)
    end = tl.minimum(num_keys, num_keys - num_queries + (part * QUERIES + QUERIES - 1) // SHARE + 1)
    end = tl.where(part * QUERIES // SHARE < num_queries, end, 0)
    for begin in range(0, end, KEYS):
        place = begin + tl.arange(0, KEYS)
        is_key = place < num_keys
        slot = tl.load(index + first_key + place, mask=is_key, other=0).to(tl.int64)
        k = tl.load(
            key + slot[None, :] * key_slot + group * key_head + feature[:, None],
            mask=is_key[None, :] & (feature[:, None] < SIZE),
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where(place[None, :] <= last_seen[:, None], scores, -float("inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights, fade = tl.exp(scores - higher[:, None]), tl.exp(peak - higher)
        total = total * fade + tl.sum(weights, 1)
        v = tl.load(
            value + slot[:, None] * value_slot + group * value_head + of_value[None, :],
            mask=is_key[:, None] & (of_value[None, :] < OF_VALUE),
            other=0.0,
        )
        mean = mean * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    to = (first_query + token) * out_token + head * out_head
    inside = is_query[:, None] & (of_value[None, :] < OF_VALUE)
    tl.store(out + to[:, None] + of_value[None, :], (mean / total[:, None]).to(out.dtype.element_ty), mask=inside)
