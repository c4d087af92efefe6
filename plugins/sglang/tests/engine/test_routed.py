"""What an engine notes for routing replay in bytes is what SGLang's own capturer notes in words; and how it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from slime_sglang.engine.frames import ROWS, answer_of, answers_of, frame
from slime_sglang.engine.routed import as_bytes, dtype_of, expert_layers, note_in_bytes, of_a_pass

NUM_TOKENS, TOPK = 24, 3


@pytest.fixture
def capturer_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """SGLang's own, in memory that a machine without CUDA has."""
    from sglang.srt.state_capturer.base import BaseHostCache, BaseTopkCapturer

    if not torch.cuda.is_available():
        from sglang_torch_cpu.capture import make_host_cache

        monkeypatch.setattr(BaseHostCache, "__init__", make_host_cache)
    return BaseTopkCapturer


def model_of(layers: list[int], drafting: int) -> torch.nn.Module:
    from sglang.srt.layers.moe.topk import TopK

    routers = [TopK(top_k=TOPK, layer_id=layer) for layer in layers]
    draft = TopK(top_k=TOPK, layer_id=drafting, allow_routed_experts_capture=False)
    return torch.nn.ModuleList([*routers, draft])


@pytest.mark.parametrize("num_experts", [256, 300])
@pytest.mark.parametrize("layers", [[1, 2, 3], [0, 2, 4], [1]])
def test_bytes_are_the_numbers_of_the_layers_with_experts(
    capturer_class: Any, layers: list[int], num_experts: int
) -> None:
    def create(*, model: Any, model_config: Any, num_tokens: int, device: str) -> Any:
        return capturer_class(num_tokens, NUM_TOKENS, 5, TOPK, device, "routed_experts")

    config = SimpleNamespace(hf_text_config=SimpleNamespace(n_routed_experts=num_experts))
    sizes = {"model_config": config, "num_tokens": 100, "device": "cpu"}
    ours, theirs = note_in_bytes(create, model=model_of(layers, drafting=5), **sizes), create(model=None, **sizes)
    assert ours.host_cache.buffer.nbytes == 100 * len(layers) * TOPK * (1 if num_experts == 256 else 2)
    draw, places = torch.Generator().manual_seed(1), torch.arange(7, 7 + NUM_TOKENS).flip(0)
    for layer in layers:
        experts = torch.rand(NUM_TOKENS, num_experts, generator=draw).argsort()[:, :TOPK].int()
        experts[3] = -1  # padding
        for each in (ours, theirs):
            each.capture(layer, experts)
    local = ours._get_local_slice
    ours._get_local_slice = lambda *arguments: of_a_pass(lambda _, *rest: local(*rest), ours, *arguments)
    pool = SimpleNamespace(req_to_token=places[None])
    told = []
    for each in (ours, theirs):
        each.on_forward_end(SimpleNamespace(out_cache_loc=places), False, None)
        told.append(each.get_topk(0, NUM_TOKENS + 1, pool).numpy())
    data = as_bytes(torch.from_numpy(told[0]))
    assert data is not None
    read = np.frombuffer(data, "u1" if num_experts == 256 else "<u2").reshape(NUM_TOKENS, len(layers), TOPK)
    wanted = told[1][:, layers]
    known = wanted[:, 0, 0] >= 0
    assert known.sum() == NUM_TOKENS - 1
    assert wanted.max() == num_experts - 1 or wanted.max() > 200, "the highest numbers are drawn"
    assert np.array_equal(read[known], wanted[known])
    assert (read[~known] == np.iinfo(read.dtype).max).all(), "equal experts, which no router chooses"


def test_an_engine_that_notes_nothing_has_no_capturer() -> None:
    assert note_in_bytes(lambda **_: None, model=None, model_config=None, num_tokens=1) is None


def test_layers_are_those_whose_routers_are_noted() -> None:
    assert expert_layers(model_of([3, 1, 3], drafting=4)) == [1, 3]


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ({"num_experts": 128}, torch.uint8),
        ({"num_local_experts": 257}, torch.int16),
        ({"n_routed_experts": 384, "num_experts": None}, torch.int16),
        ({}, torch.int16),  # unknown: what is large enough for all
    ],
)
def test_a_byte_where_it_is_enough(sizes: dict[str, int], dtype: torch.dtype) -> None:
    assert dtype_of(SimpleNamespace(**sizes)) == dtype


def answer(rows: bytes | None, index: int = 0) -> dict[str, Any]:
    meta = {"id": "1", "finish_reason": {"type": "stop"}}
    return {"output_ids": [1, 2], "index": index, "meta_info": meta if rows is None else {**meta, ROWS: rows}}


ANSWERS = [answer(bytes(range(256)) * 9), answer(None, 1), answer(b"", 2), {"error": {"message": "no", "code": 400}}]


@pytest.mark.parametrize("one", ANSWERS)
def test_a_frame_says_what_the_answer_said(one: dict[str, Any]) -> None:
    data = frame(one)
    assert answer_of(data) == one
    with pytest.raises(EOFError):
        answer_of(data[:-1])
    with pytest.raises(EOFError):
        answer_of(data[:5])


@pytest.mark.parametrize("size", [1, 7, 1000, 10**6])
def test_frames_are_found_in_chunks_of_any_size(size: int) -> None:
    data = b"".join(map(frame, ANSWERS))

    async def found(upto: int) -> list[Any]:
        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, upto, size):
                yield data[start : min(start + size, upto)]

        return [one async for one in answers_of(chunks())]

    assert asyncio.run(found(len(data))) == ANSWERS
    with pytest.raises(EOFError):
        asyncio.run(found(len(data) - 1))
