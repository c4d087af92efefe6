"""Experts that an engine notes for routing replay, in a byte each and handed over as bytes.

SGLang notes four bytes for every expert in page-locked memory, for layers without experts too, and answers in base64.
Here it notes one byte (two where a layer has more than 256 experts), of the layers that have experts, so that the
memory and all copies are a fourth or less. The server answers in frames (`slime_sglang.engine.frames`).

SGLang collects the rows of a request that has finished. A prefill engine finishes none: it forgets a prompt once its
keys are sent. A decode engine moves the keys of a request for which it has no room to the host, and back to other
places of its pool, to which rows do not follow. Both are mended here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import torch

from slime_sglang.engine.frames import GENERATE, ROWS, frame

LARGEST_OF_A_BYTE = 256
"""Experts of a layer whose numbers fit a byte. -1, which SGLang notes of padding, becomes 255 for each of a token's
experts; a choice has different ones."""
_WORD = 4
_COUNTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""Names of the number of experts in config.json, by family."""


def note_in_bytes(original: Callable[..., Any], *, model: Any, model_config: Any, num_tokens: int, **sizes: Any) -> Any:
    """Around SGLang's constructor of what notes experts, in its schedulers: with a cache of small numbers, for the
    `num_tokens` of the pool."""
    capturer = original(model=model, model_config=model_config, num_tokens=1, **sizes)
    if capturer is None:
        return None
    layers, topk = expert_layers(model), capturer.topk_size
    dtype = dtype_of(model_config.hf_text_config)
    # As SGLang makes it, page-locked on GPUs, in words of which a token has whole ones.
    cache = type(capturer.host_cache)(num_tokens, -(-len(layers) * topk * dtype.itemsize // _WORD), 1, name=ROWS)
    numbers = cache.buffer.flatten(1).view(dtype)[:, : len(layers) * topk]
    cache.buffer, cache.num_layers, cache.topk_size = numbers.unflatten(1, (len(layers), topk)), len(layers), topk
    capturer.host_cache = cache
    capturer.slime_layers = torch.tensor(layers, device=sizes["device"])
    return capturer


def of_a_pass(original: Callable[..., torch.Tensor], capturer: Any, *arguments: Any, **named: Any) -> torch.Tensor:
    """Around what SGLang copies from the device after a pass, [tokens, layers, experts a token]: as it is noted."""
    return original(capturer, *arguments, **named)[:, capturer.slime_layers].to(capturer.host_cache.buffer.dtype)


def note_prompt(_: Any, scheduler: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None) -> None:
    """After a prefill engine has begun to send keys, the last ones of a prompt: its rows, for the answer. All of the
    prompt has been computed, and it has its places in the pool until all keys are sent."""
    if last_chunk:
        scheduler.batch_result_processor._maybe_collect_routed_experts(req)


def keep_rows(req: Any, req_to_token_pool: Any, allocator: Any) -> None:
    """Before a decode engine moves a request's keys to the host. Rows are not written to its next places: those may
    still be noted of a pass before, whose request has finished."""
    from sglang.srt.state_capturer.routed_experts import get_global_experts_capturer

    if req.return_routed_experts and (capturer := get_global_experts_capturer()):
        rows = capturer.get_topk(req.req_pool_idx, req.seqlen, req_to_token_pool, req.routed_experts_start_len)
        req.slime_rows = _with_kept(req, rows)


def put_back_rows(_: Any, processor: Any, req: Any) -> None:
    """After the rows of a request are collected: those of the places that it had first."""
    if req.routed_experts is not None:
        req.routed_experts = _with_kept(req, req.routed_experts)


def _with_kept(req: Any, rows: torch.Tensor) -> torch.Tensor:
    kept = getattr(req, "slime_rows", rows[:0])
    return torch.cat([kept, rows[len(kept) :]])


def expert_layers(model: torch.nn.Module) -> list[int]:
    """Layers of SGLang's model whose router's choice is noted."""
    from sglang.srt.layers.moe.topk import TopK

    routers = [module for module in model.modules() if isinstance(module, TopK)]
    return sorted({router.layer_id for router in routers if router.topk_config.allow_routed_experts_capture})


def dtype_of(config: Any) -> torch.dtype:
    """Of an expert's number: that of the config's largest layer."""
    counts = [getattr(config, name, None) or 0 for name in _COUNTS]
    return torch.uint8 if 0 < max(counts) <= LARGEST_OF_A_BYTE else torch.int16


async def take_as_bytes(original: Callable[..., Awaitable[None]], manager: Any, received: Any) -> None:
    """Around what the server does with what schedulers send it: SGLang passes on what is no tensor as it is."""
    if getattr(received, ROWS, None):
        setattr(received, ROWS, [as_bytes(rows) for rows in getattr(received, ROWS)])
    await original(manager, received)


def as_bytes(rows: Any) -> bytes | None:
    """A tensor, or what SGLang's detokenizer made of it where requests have stop strings, in base64."""
    if isinstance(rows, str):
        import pybase64

        decoded: bytes = pybase64.b64decode(rows)
        return decoded
    return None if rows is None else bytes(rows.numpy().data)


def add_route(app: Any) -> None:
    """Have SGLang's server answer to `GENERATE`."""
    app.router.add_route(GENERATE, generate, methods=["POST"])


async def generate(request: Any) -> Any:
    """As SGLang's `/generate` (`generate_request`), in frames: one a request, as they end."""
    import orjson
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.io_struct import GenerateReqInput
    from starlette.responses import Response, StreamingResponse

    manager = http_server.get_global_state().tokenizer_manager
    asked = GenerateReqInput(**orjson.loads(await request.body()))
    answers = manager.generate_request(asked, request)
    media = "application/octet-stream"
    if asked.stream:
        end = manager.create_abort_task(asked)
        return StreamingResponse(_frames(answers), media_type=media, background=end)
    try:
        return Response(frame(await anext(answers), http_server.dumps_json), media_type=media)
    except ValueError as error:
        return http_server._create_error_response(error)


async def _frames(answers: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    from sglang.srt.entrypoints.http_server import dumps_json

    try:
        async for answer in answers:
            yield frame(answer, dumps_json)
    except ValueError as error:  # also of a client that has gone, who does not read this
        yield frame({"error": {"message": str(error), "code": 400}})
