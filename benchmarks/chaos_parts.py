"""Parts of a run that `chaos.py` breaks without starting one: the checkpoint store, an engine, the reward service."""

from __future__ import annotations

import functools
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SEED = 11
Table = Sequence[Sequence[str]]
"""The head, then the rows."""


@contextmanager
def folder() -> Iterator[Path]:
    """Short, because Ray's sockets lie below."""
    path = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- damaged checkpoints

FLIPS_A_FILE = 5
BROKEN_MANIFESTS = ("", "{}", "[]", "null")


def damages(run: Path) -> Iterator[list[str]]:
    """Every file of the newest checkpoint in turn: the one before must be taken."""
    bits, checkpoint = random.Random(SEED), newest(run)
    for name in sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()):
        yield damaged(run, name, "flipped bits, anywhere", functools.partial(flip, bits), FLIPS_A_FILE)
        yield damaged(run, name, "last byte lost", cut)
        yield damaged(run, name, "missing", Path.unlink)
    for text in BROKEN_MANIFESTS:
        yield damaged(
            run, "manifest.json", f"`{text}`" if text else "empty", functools.partial(Path.write_text, data=text)
        )


def damaged(run: Path, name: str, what: str, damage: Callable[[Path], Any], times: int = 1) -> list[str]:
    """How often the store passes over a checkpoint with one damaged file, and what it says."""
    from slime.checkpoints import CheckpointStore

    caught, said = 0, ""
    for _ in range(times):
        with folder() as path, listening() as warnings:
            shutil.copytree(run / "checkpoints", path / "checkpoints")
            bad = newest(path)
            damage(bad / name)
            latest = CheckpointStore(path / "checkpoints", keep=2).latest()
            caught += latest is not None and latest.path != bad
            said = " ".join(warnings).removeprefix(f"skipping damaged checkpoint {bad}: ")
    share = f"{caught} of {times}"
    return [f"{name}: {what}", share if caught == times else f"**{share}**", quoted(said)]


def quoted(text: str) -> str:
    """One short line of a table."""
    short = " ".join(text.split())[:240]
    return "`" + short.replace("`", "'").replace("|", "/") + "`"


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*"))


@contextmanager
def listening() -> Iterator[list[str]]:
    """The warnings of slime while the block runs."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Handler()
    logging.getLogger("slime").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("slime").removeHandler(handler)


def flip(bits: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[bits.randrange(len(data))] ^= 1 << bits.randrange(8)
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


# --- faults of a publish

NUM_FLIPS = 40


def faults() -> Table:
    """A real engine: each fault on top of a good version, then a good one again; and requests without the run's key."""
    from safetensors.torch import load_file

    from slime.config.paths import resolve
    from slime_testing.engines import running_engine
    from slime_testing.models import write_checkpoint
    from tests.weights.publisher import test_publish as tests

    model, bits = resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), random.Random(SEED)
    with folder() as path, running_engine(model, path / "engine.log") as engine:
        write_checkpoint(json.loads((model / "config.json").read_text()), path)
        tensors = load_file(path / "model.safetensors")
        fault = functools.partial(faulty_publish, engine.endpoint, tensors)
        rows = [[name, *fault(change(tensors), kind)] for name, (change, kind, _) in tests.FAULTS.items()]
        flips = [fault(tensors, flipping(bits, tensors)) for _ in range(NUM_FLIPS)]
        same = [f"{sum(row[1:] == ['refuses', 'mends it'] for row in flips)} of {NUM_FLIPS} so"]
        rows += [[f"{NUM_FLIPS} single bits, anywhere", flips[0][0], *same, *same]]
        rows += [[f"{route} without the run's key", *keyless(engine.endpoint.url + route), "-"] for route in ROUTES]
    return [["fault", "it says", "the engine then", "the next publish"], *rows]


def faulty_publish(engine: Any, tensors: Mapping[str, Any], sent: Mapping[str, Any], bucket: type) -> list[str]:
    """What publishing `sent` by way of `bucket` says, whether the engine answers then, and after a good publish."""
    from slime.errors import SlimeError
    from slime_testing.publishing import publish
    from tests.transports import BUCKET, generate

    publish(iter(tensors.items()), [engine], 1, BUCKET)
    said, then = "**nothing**", "refuses"
    try:
        publish(iter(sent.items()), [engine], 2, BUCKET, bucket_type=bucket)
    except SlimeError as error:
        said = quoted(error.what)
    with suppress(SlimeError):
        then = f"**answers as {generate(engine).weight_version}**"
    publish(iter(tensors.items()), [engine], 3, BUCKET)
    return [said, then, "mends it" if generate(engine).weight_version == 3 else "**does not**"]


def flipping(bits: random.Random, tensors: Mapping[str, Any]) -> type:
    """A bucket that loses one bit of one tensor on the way."""
    from weight_buckets.bucket import SharedBucket

    victim = bits.choice(sorted(tensors))
    offset, bit = bits.randrange(tensors[victim].nbytes), 1 << bits.randrange(8)

    class Flipping(SharedBucket):
        def payload(self, note: Any) -> Any:
            for meta in self.metadata:
                if meta.name == victim:
                    self.memory[meta.start_idx + offset] ^= bit
            return super().payload(note)

    return Flipping


ROUTES = ("/generate", "/abort_request", "/pause_generation", "/update_weights_from_disk", "/update_weight_version")


def keyless(url: str) -> list[str]:
    """How the engine answers somebody who has no key."""
    request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json"})
    try:
        code = urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as error:
        code = error.code
    return [f"HTTP {code}", "is untouched" if code == 401 else "**obeys**"]


# --- rewards that misbehave


def rewards() -> Table:
    """As `rewards.py` measures them."""
    command = [sys.executable, str(Path(__file__).with_name("rewards.py")), "--misdeeds"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
