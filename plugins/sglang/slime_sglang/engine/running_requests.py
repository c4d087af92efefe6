"""A publish while requests are inside a paused engine, in SGLang's scheduler processes.

SGLang answers a request with one version, the last. Here the answer says under `SPANS` how many tokens the request had
at each change of the version, for `slime.engine_client.client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from slime.segments import SPANS

RUNNING = "requests are running; pause the engine with mode 'retract', which puts them back into the queue"
_served: str | None = None
"""The version that this process computes with; None before the first."""


def under_requests(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """Around the scheduler's update, on every rank alike. SGLang flushes the cache behind the last bucket, and dies if
    requests hold a part of it: so that is refused before anything is loaded. An update without a flush leaves the keys
    of older weights where they are."""
    global _served
    scheduler = manager.scheduler
    if recv_req.flush_cache and scheduler._engine_paused and _holders(scheduler):
        from sglang.srt.managers import io_struct

        asked = type(recv_req).__name__.removesuffix("Input")
        return getattr(io_struct, f"{asked}Output")(success=False, message=RUNNING)
    answer = original(manager, recv_req)
    if answer.success and recv_req.weight_version is not None:
        if _served is not None:
            for request, num_on_their_way in _begun(scheduler):
                _note(request, len(request.output_ids) + num_on_their_way, _served)
        _served = recv_req.weight_version
    return answer


def flush_behind_waiting(original: Callable[..., bool], scheduler: Any, empty_cache: bool = True) -> bool:
    """Around the flush of the cache, which SGLang refuses while requests wait. Those that a pause has put back into the
    queue hold nothing of it: they compute all of their keys again."""
    if not scheduler._engine_paused:
        return original(scheduler, empty_cache)
    waiting, scheduler.waiting_queue = scheduler.waiting_queue, []
    try:
        return original(scheduler, empty_cache)
    finally:
        scheduler.waiting_queue = waiting


def _holders(scheduler: Any) -> list[Any]:
    """The requests that hold a part of the cache."""
    batches = [scheduler.running_batch, scheduler.last_batch]
    found = [request for batch in batches if batch is not None for request in batch.reqs]
    found += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    return [request for request in {id(request): request for request in found}.values() if not request.finished()]


def _begun(scheduler: Any) -> Iterator[tuple[Any, int]]:
    """The requests inside, and how many tokens of each are computed and not yet among its own: with overlap scheduling
    those of the last batch."""
    results = scheduler.result_queue if scheduler.enable_overlap else ()
    computed = {id(request) for batch, _ in results for request in batch.reqs if request.inflight_middle_chunks <= 0}
    for request in [*_holders(scheduler), *scheduler.waiting_queue]:
        yield request, int(id(request) in computed)


def _note(request: Any, count: int, version: str) -> None:
    """Have the answer say that the first `count` tokens, but for those noted before, are of `version`: with the first
    token that was not sent yet, as SGLang sends entries of tokens with these."""
    if request.customized_info is None:
        request.customized_info = {}
    entries: list[Any] = request.customized_info.setdefault(SPANS, [])
    noted = sum(tokens for entry in entries if entry for _, tokens in entry)
    if count > noted:
        place = request.send_token_offset
        entries += [None] * (place + 1 - len(entries))
        entries[place] = [*(entries[place] or []), [version, count - noted]]
