"""What an SGLang 0.5.16 engine allocates for its requests, beside weights and token pool. No torch.

None of it lies in the share of `mem_fraction_static`, which SGLang gives to weights and pool alone. Most of it grows
with the context that a model was published with, whatever a run uses of it.
"""

from __future__ import annotations

MULTIPROCESSORS = 256
"""Of a GPU that nobody named: more than any has."""
INPUTS = 48
"""Bytes of a token in the fixed input buffers: id, position and place in the pool, and three positions of images."""
FLASHINFER = 384 * 2**20
"""Workspace of FlashInfer's attention."""


def table_rows(tokens: int, context: int, running: int | None, *, waiting: int = 0) -> int:
    """Requests that a data-parallel rank has a row for (`resolve_max_num_reqs`), and one row that nobody has.

    Left alone SGLang takes 2,048 to 4,096, at most one for two tokens of the pool.

    Args:
        tokens: of the pool.
        running: `max_running_requests` of the rank.
        waiting: more of them on a decode engine, for caches on their way (`disaggregation_decode_extra_slots`).
    """
    most = min(max(int(tokens / context * 512), 2048), 4096) if running is None else running
    return min(most, tokens // 2) + waiting + 1


def request_table(rows: int, context: int, drafted: int) -> int:
    """4 bytes for each token that a request may have: where its keys lie (`ReqToTokenPool`)."""
    return 4 * rows * (context + 4 + drafted)


def attention_buffers(
    backend: str,
    requests: int,
    context: int,
    heads: float,
    value: int,
    *,
    latent: bool,
    drafted: int,
    steps: int,
    multiprocessors: float = MULTIPROCESSORS,
) -> float:
    """What attention keeps so that CUDA graphs of `requests` find it at one address (`init_cuda_graph_state`).

    An engine that drafts has such buffers for the model, for each step of drafts and for what it drafts from.

    Args:
        heads: of a rank.
        value: numbers of a value that a head reads from the pool.
        latent: keys and values are one latent.
        drafted: tokens that a decode step brings for a request, 0 without drafts.
        steps: of drafts.
        multiprocessors: of the GPU.
    """
    rows = requests * max(drafted, 1)
    if backend == "triton":  # 8 bytes of a place, 1 of a mask, and each part of a sum that splits put together, in fp32
        splits = max(8, min(_power_of_2(int(multiprocessors)), _power_of_2(-(-context // 32)))) if latent else 8
        row = 8 * context + 4 * heads * splits * (value + 1)
        return rows * (context + row) + (rows + steps * requests) * row * bool(drafted)
    if backend == "flashinfer":  # 4 bytes of a place, 1 of a mask
        return FLASHINFER + context * (5 * rows + (5 * rows + 4 * steps * requests) * bool(drafted))
    if backend == "dsa":
        return 4.0 * context * (rows + (rows + (steps - 1) * requests) * bool(drafted))
    tables = 4 * (steps + 1) * requests if drafted else requests
    return 4.0 * context * tables + rows * context * bool(drafted)


def num_prefill_graphs(most: int) -> int:
    """Sizes of passes over prompts, up to `most` tokens, for which SGLang captures a graph."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, most + 1, 512))
    return sum(size <= most for step in steps for size in range(*step))


def _power_of_2(number: int) -> int:
    return int(1 << (number - 1).bit_length())
