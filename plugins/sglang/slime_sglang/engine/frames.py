"""Answers of an engine that have bytes beside their JSON, in frames.

A frame is two lengths (little-endian, 32 bits), an answer in JSON without its bytes, and the bytes. Base64 in JSON
would be a third longer, and would be coded, searched for quotes and decoded.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

GENERATE = "/slime/generate"
"""As SGLang's `/generate`, answered in frames."""
ASKS = "return_routed_experts"
"""Field of a request whose answer has bytes."""
FROM = "routed_experts_start_len"
"""Field of such a request: the first token whose row is answered."""
ROWS = "routed_experts"
"""Where they stand in the `meta_info` of an answer: `bytes`."""
_LENGTHS = struct.Struct("<II")


def frame(answer: Mapping[str, Any], dumps: Callable[[Any], bytes] = orjson.dumps) -> bytes:
    """One answer; the bytes of its `meta_info` go to the end of the frame. `dumps` writes JSON."""
    meta = answer.get("meta_info", {})
    rows = meta.get(ROWS)
    if rows is not None:
        answer = {**answer, "meta_info": {**meta, ROWS: None}}
    text = dumps(answer)
    return b"".join([_LENGTHS.pack(len(text), len(rows or b"")), text, rows or b""])


def answer_of(data: bytes | bytearray) -> Any:
    """What one frame says.

    Raises:
        EOFError: it has another length.
    """
    if len(data) < _LENGTHS.size or len(data) != _length(data):
        raise EOFError("the answer broke off")
    text, size = _LENGTHS.unpack_from(data)
    answer = orjson.loads(memoryview(data)[_LENGTHS.size : _LENGTHS.size + text])
    if ROWS in answer.get("meta_info", {}):  # rows of no token are bytes too
        answer["meta_info"][ROWS] = bytes(data[len(data) - size :])
    return answer


async def answers_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """What frames say, whose ends are not those of chunks.

    Raises:
        EOFError: the last one is not whole.
    """
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        while len(data) >= _LENGTHS.size and len(data) >= (length := _length(data)):
            one = data[:length]
            del data[:length]
            yield answer_of(one)
    if data:
        raise EOFError("the answer broke off")


def _length(data: bytes | bytearray) -> int:
    text, rows = _LENGTHS.unpack_from(data)
    return _LENGTHS.size + int(text) + int(rows)
