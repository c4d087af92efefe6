"""What a delta of one optimizer step weighs beside the full version: most weights in bf16 do not move.

    python benchmarks/delta.py                            # 6 layers of 768 on this machine
    python benchmarks/delta.py --layers 2 --steps 4       # a short look
    python benchmarks/delta.py --lr 1e-6,1e-5

Trains a decoder on source code, from random weights: Adam with fp32 masters, of which every step's bf16 copy (or, where
it says so, that copy in FP8 blocks of 128 x 128) is published through `slime_sglang.disk.publish`, and read again as
an engine does. First the bytes by step, then other encodings of the last step, by which the one in
`slime_sglang.disk.delta` was chosen.
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from machine import conditions
from transformers import LlamaConfig, LlamaForCausalLM

from slime.config.paths import resolve
from slime.data.tokenize import load_tokenizer
from slime.files import human_bytes
from slime_megatron.fp8_block.config import SCALE
from slime_megatron.fp8_block.quantizer import quantize
from slime_sglang.disk import delta
from slime_sglang.disk.folder import stored
from slime_sglang.disk.publish import Disk, VersionFolder
from slime_sglang.disk.receive import receive
from slime_sglang.engine.side import EngineSide
from slime_testing.publishing import publish_over

TOKENIZER = "pkg://slime_plugin_glm4/assets/glm4-tiny"
BUCKET = 64 * 2**20
LENGTH, SEQUENCES = 256, 2
SHOWN = (1, 2, 3, 5, 10, 20, 50, 100)
Tensors = dict[str, torch.Tensor]


@dataclass
class Row:
    """One step.

    Attributes:
        moved: share of the elements in bf16.
        full, sent: bytes of the version, and of its delta.
        writing, reading: seconds, the disk included.
    """

    step: int
    moved: float
    full: int
    sent: int
    fp8_full: int
    fp8_sent: int
    writing: float
    reading: float


class Channel:
    """A folder, its publisher, and a reader that keeps what an engine keeps."""

    def __init__(self, path: Path) -> None:
        self.folder, self.version = VersionFolder(path, full_every=10**6), 0
        self.model = torch.nn.Module()

    def publish(self, tensors: Tensors) -> tuple[int, int, float, float]:
        """Bytes in full and sent, seconds to write and to read."""
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:
            transport = Disk([], pool, self.folder, self.version, torch.device("cpu"))
            receipt = publish_over(transport, iter(tensors.items()), self.version, BUCKET)
        written = time.perf_counter()
        told = {"folder": str(self.folder.path), "name": stored(self.folder.path)[-1]}
        receive(told, EngineSide(self.model, torch.device("cpu"), {}, lambda bucket: None, lambda offer: [offer]))
        self.version += 1
        return receipt.num_bytes, receipt.num_bytes_sent, written - start, time.perf_counter() - written


def batches(seed: int) -> Iterator[torch.Tensor]:
    """[SEQUENCES, LENGTH] tokens of Python's standard library, in random order."""
    tokenizer, generator = load_tokenizer(resolve(TOKENIZER)), torch.Generator().manual_seed(seed)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = "".join(file.read_text(errors="replace") for file in files)[: 4 * 2**20]
    tokens = torch.tensor(tokenizer.encode(text))
    while True:
        starts = torch.randint(len(tokens) - LENGTH, (SEQUENCES,), generator=generator).tolist()
        yield torch.stack([tokens[start : start + LENGTH] for start in starts])


def in_bf16(model: torch.nn.Module) -> Tensors:
    return {name: value.detach().bfloat16() for name, value in model.named_parameters()}


def in_fp8(tensors: Tensors) -> Tensors:
    """As `rollout.fp8=block` has it: the matrices of the layers."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        if "proj" in name:
            ((found[name], found[name + SCALE]),) = quantize([tensor])
        else:
            found[name] = tensor
    return found


def train(lr: float, layers: int, width: int, steps: int, folder: Path) -> tuple[list[Row], Tensors, Tensors]:
    """The rows, and the last two versions in bf16."""
    torch.manual_seed(0)
    data = batches(0)
    vocabulary = len(load_tokenizer(resolve(TOKENIZER)))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98))
    plain, quantized = Channel(folder / "bf16"), Channel(folder / "fp8")
    now = in_bf16(model)
    plain.publish(now)
    quantized.publish(in_fp8(now))
    rows = []
    for step in range(1, steps + 1):
        tokens = next(data)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        before, now = now, in_bf16(model)
        moved = sum(int((now[name] != before[name]).sum()) for name in now) / sum(t.numel() for t in now.values())
        full, sent, writing, reading = plain.publish(now)
        fp8_full, fp8_sent, _, _ = quantized.publish(in_fp8(now))
        rows.append(Row(step, moved, full, sent, fp8_full, fp8_sent, writing, reading))
    return rows, before, now


def encodings() -> dict[str, Callable[[np.ndarray, np.ndarray], int]]:
    """Other ways to write what changed, of words of 16 bits: bytes that they need."""

    def packed(*arrays: np.ndarray, codec: str = "zstd") -> int:
        return sum(len(pa.Codec(codec).compress(array.tobytes(), asbytes=True)) for array in arrays)

    def changes(now: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        (positions,) = np.nonzero(now != before)
        return positions.astype(np.uint32), now[positions]

    return {
        "XOR, zstd": lambda now, before: packed(now ^ before),
        "XOR, lz4": lambda now, before: packed(now ^ before, codec="lz4"),
        "index and value": lambda now, before: sum(array.nbytes for array in changes(now, before)),
        "index and value, zstd": lambda now, before: packed(*changes(now, before)),
        "bit mask and difference, zstd": lambda now, before: packed(
            np.packbits(now != before), (now - before)[now != before]
        ),
        "distance and difference in byte planes, zstd (ours)": lambda now, before: len(
            delta.encode(now.view(np.uint8), before.view(np.uint8), 2) or now.tobytes()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a delta weighs.")
    parser.add_argument("--lr", type=lambda text: [float(lr) for lr in text.split(",")], default=[1e-6])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    print(f"{conditions()}, {torch.get_num_threads()} threads of torch")
    print(f"{args.layers} layers of {args.width}, Adam (0.9, 0.98), {SEQUENCES} x {LENGTH} tokens a step")
    for lr in args.lr:
        with tempfile.TemporaryDirectory() as folder:
            rows, before, now = train(lr, args.layers, args.width, args.steps, Path(folder))
        print_rows(lr, rows)
    print_encodings(before, now)


def print_rows(lr: float, rows: list[Row]) -> None:
    print(f"\nlr {lr:g}: {human_bytes(rows[0].full)} in bf16, {human_bytes(rows[0].fp8_full)} in FP8\n")
    print("| step | moved | delta | of bf16 | of FP8 | write | read |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        if row.step in SHOWN or row is rows[-1]:
            print(
                f"| {row.step} | {row.moved:.2%} | {human_bytes(row.sent)} | {row.sent / row.full:.2%} "
                f"| {row.fp8_sent / row.fp8_full:.2%} | {row.writing:.2f} s | {row.reading:.2f} s |"
            )


def print_encodings(before: Tensors, now: Tensors) -> None:
    new, old = (
        np.concatenate([tensor.view(torch.int16).reshape(-1).numpy().view(np.uint16) for tensor in version.values()])
        for version in (now, before)
    )
    print("\nthe last step in other encodings, all of it at once\n")
    print("| encoding | of full | MB/s |")
    print("|---|---:|---:|")
    for name, encode in encodings().items():
        start = time.perf_counter()
        size = encode(new, old)
        print(f"| {name} | {size / new.nbytes:.2%} | {new.nbytes / (time.perf_counter() - start) / 1e6:.0f} |")


if __name__ == "__main__":
    main()
