"""What it costs to hand over the experts that an engine chose: bytes and seconds a request.

    python benchmarks/replay.py                 # alone, at the widths of GLM-4.5-Air, and through an engine
    python benchmarks/replay.py --codec         # alone
    python benchmarks/replay.py --engine        # through an engine on the CPU

Alone: experts of random numbers, [tokens, layers, experts a token], from the memory where an engine notes them to rows
that were checked. "words" is what SGLang 0.5.16 does by itself: int32 of all layers, pickled from process to process,
base64, JSON, back, the layers with experts in a byte each. "bytes" is what slime's engines do: a byte an expert from
the start, pickled once, beside the JSON (`slime_sglang.engine.routed`, `.frames`). Times are medians in one process,
without sockets; what both do alike, such as the check of every row, is "checked".

Through an engine: a tiny model on the CPU. Its prompt is in the cache, and one token
is generated: the median of requests with the experts of all tokens, and without. `bytes` are those of the answer's
experts. Run it in a checkout of an earlier commit to see what it was.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from machine import conditions

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.models.bridge import traits_of
from slime_megatron.mixture_of_experts.replay import ROUTED_EXPERTS, RoutedExperts
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing import models
from slime_testing.engines import as_exported, running_engine
from slime_testing.publishing import publish

AIR = RoutedExperts(layers=tuple(range(1, 46)), num_layers=46, num_experts=128, topk=8)
TINY = "pkg://slime_plugin_glm4/assets/glm4-moe-tiny"
WARM, REPEATS = 2, 9


def seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    """The median, and the result."""
    found = []
    for _ in range(WARM + REPEATS):
        began = time.perf_counter()
        result = function()
        found.append(time.perf_counter() - began)
    return statistics.median(found[WARM:]), result


def noted(recording: RoutedExperts, num_tokens: int) -> torch.Tensor:
    """[num_tokens, layers of the model, k] int32, different experts in each row."""
    noise = np.random.default_rng(1).random((num_tokens, recording.num_layers, recording.num_experts), np.float32)
    return torch.from_numpy(noise.argpartition(recording.topk, -1)[..., : recording.topk].astype(np.int32))


def codec(recording: RoutedExperts, num_tokens: int) -> None:
    """Rows of a request's tokens, wherever the pool has them: here in an order drawn by chance."""
    import pybase64

    from slime_sglang.engine.frames import answer_of, frame

    places = torch.randperm(num_tokens, generator=torch.Generator().manual_seed(2))
    layers, tokens = list(recording.layers), range(num_tokens + 1)
    in_words = torch.empty(num_tokens, recording.num_layers, recording.topk, dtype=torch.int32)
    in_words[places] = noted(recording, num_tokens)
    in_bytes = in_words[:, layers].to(torch.uint8)

    def through(buffer: torch.Tensor) -> tuple[dict[str, float], torch.Tensor]:
        times: dict[str, float] = {}
        times["gathered"], rows = seconds(lambda: buffer[places])
        times["to the server"], rows = seconds(lambda: pickle.loads(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)))
        return times, rows

    def words(rows: torch.Tensor) -> bytes:
        text = pybase64.b64encode(rows.numpy().tobytes()).decode()
        return orjson.dumps({"meta_info": {ROUTED_EXPERTS: text}})

    def read_words(sent: bytes) -> bytes:
        data = base64.b64decode(orjson.loads(sent)["meta_info"][ROUTED_EXPERTS])
        whole = np.frombuffer(data, "<i4").reshape(num_tokens, recording.num_layers, recording.topk)
        return whole[:, layers].astype(recording.dtype).tobytes()

    def read_bytes(sent: bytes) -> bytes:
        read: bytes = answer_of(sent)["meta_info"][ROUTED_EXPERTS]
        return read

    ways: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], bytes], Callable[[bytes], bytes]]] = {
        "words": (in_words, words, read_words),
        "bytes": (in_bytes, lambda rows: frame({"meta_info": {ROUTED_EXPERTS: bytes(rows.numpy().data)}}), read_bytes),
    }
    columns = ("gathered", "to the server", "coded", "decoded", "checked")
    print(f"\n{num_tokens} tokens, {len(layers)} layers with experts of {recording.num_layers}, top {recording.topk}\n")
    print(f"| | noted, bytes a token | sent, bytes | {', ms | '.join(columns)}, ms | all, ms |\n|{'---|' * 9}")
    results = []
    for name, (buffer, code, decode) in ways.items():
        times, rows = through(buffer)
        times["coded"], sent = seconds(lambda code=code, rows=rows: code(rows))
        times["decoded"], told = seconds(lambda decode=decode, sent=sent: decode(sent))
        times["checked"], checked = seconds(lambda told=told: recording.read({ROUTED_EXPERTS: told}, tokens))
        results.append(checked)
        cells = " | ".join(f"{1000 * times[column]:.1f}" for column in columns)
        noted_bytes = buffer[0].numel() * buffer.element_size()
        print(f"| {name} | {noted_bytes:,} | {len(sent):,} | {cells} | {1000 * sum(times.values()):.1f} |")
    assert results[0] == results[1], "both say the same"


async def ask(client: SGLangClient, prompt: list[int], recording: RoutedExperts, fields: dict[str, Any]) -> int:
    """Bytes of the answer's experts, once they are rows."""
    completion = await client.generate(prompt, {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True}, **fields)
    rows = recording.read(completion.meta, [*prompt, *completion.tokens])
    assert (rows is not None) == bool(fields)
    return len(completion.meta.get(ROUTED_EXPERTS) or "")


def engine(lengths: list[int]) -> None:
    hf, folder = read_hf_config(TINY), resolve(TINY)
    traits = traits_of(plugins.load().models.create(hf["model_type"]), hf)
    [recording] = [trait.recording for trait in traits if trait.recording]
    assert isinstance(recording, RoutedExperts)
    fields = {"dtype": "float32", **recording.server_fields}
    with (
        tempfile.TemporaryDirectory(prefix="replay-") as scratch,
        running_engine(folder, Path(scratch) / "engine.log", **fields) as server,
    ):
        tensors = as_exported(models.random_model(hf, seed=3).eval(), folder)
        publish(iter(tensors.items()), [server.endpoint], 1, 1 << 20)
        print("\n| prompt, tokens | experts, bytes | a request, ms | without experts, ms |\n|---|---|---|---|")
        for length in lengths:
            size, *times = asyncio.run(measured(SGLangClient(server.endpoint), recording, length))
            print(f"| {length} | {size:,} | {' | '.join(f'{1000 * value:.1f}' for value in times)} |", flush=True)


async def measured(client: SGLangClient, recording: RoutedExperts, length: int) -> tuple[int, float, float]:
    prompt = np.random.default_rng(length).integers(1, 100, length).tolist()
    found: dict[bool, list[float]] = {True: [], False: []}
    size = 0
    try:
        for _ in range(WARM + REPEATS):
            for replays in (True, False):
                began = time.perf_counter()
                size = max(
                    size, await ask(client, prompt, recording, dict(recording.request_fields) if replays else {})
                )
                found[replays].append(time.perf_counter() - began)
    finally:
        await client.close()
    return size, statistics.median(found[True][WARM:]), statistics.median(found[False][WARM:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", action="store_true", help="not through an engine")
    parser.add_argument("--engine", action="store_true", help="not alone")
    parser.add_argument("--tokens", type=int, default=8192, help="of a request, alone")
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 480], help="tokens of those to an engine")
    options = parser.parse_args()
    print(conditions())
    if not options.engine:
        codec(AIR, options.tokens - 1)
    if not options.codec:
        engine(options.prompts)


if __name__ == "__main__":
    main()
