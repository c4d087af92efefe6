"""Versions of weights that are published to a folder, and read as an engine reads them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from slime.types import Receipt
from slime_sglang.disk import receive
from slime_sglang.disk.folder import stored
from slime_sglang.disk.publish import Disk, VersionFolder
from slime_sglang.disk.stored import read_manifest
from slime_sglang.engine.load_plan import ReceivedBucket
from slime_sglang.engine.side import EngineSide, Gather
from slime_testing.publishing import publish_over
from weight_buckets.bucket import Header
from weight_buckets.receipt import NOTE_KEY, Fingerprint

BUCKET = 1 << 12
CPU = torch.device("cpu")
Tensors = Mapping[str, torch.Tensor]


def weights(seed: int = 0) -> Tensors:
    """Of several buckets: one tensor is larger than a bucket, one is empty, and some end where no word does."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed": (64, 48), "a.weight": (33, 7), "a.bias": (5,), "none": (0, 3), "b.weight": (40, 40), "c": (1,)}
    tensors = {name: (torch.randn(shape, generator=generator) * 0.02).bfloat16() for name, shape in shapes.items()}
    return {**tensors, "router.bias": torch.randn(9, generator=generator), "flag": torch.ones(3, dtype=torch.uint8)}


def stepped(tensors: Tensors, seed: int = 7) -> Tensors:
    """After a small step: some weights change, most do not."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (tensor.float() + 1e-5 * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
        for name, tensor in tensors.items()
    }


def write(folder: VersionFolder, tensors: Tensors, version: int) -> Receipt:
    """Publish to nobody; returns the receipt."""
    with ThreadPoolExecutor(1) as pool:
        return publish_over(Disk([], pool, folder, version, CPU), iter(tensors.items()), version, BUCKET)


class Engine:
    """A reading rank of an engine, of one rank unless told otherwise, which keeps what an engine keeps."""

    def __init__(self, gather: Gather = lambda offer: [offer]) -> None:
        self.gather = gather
        self.model = torch.nn.Module()
        self.fails_at = -1

    def read(self, folder: Path, name: str) -> Tensors:
        taken = {}

        def load(bucket):
            note = bucket[NOTE_KEY]
            if note["index"] == self.fails_at:
                raise RuntimeError("no place for it")
            came = ReceivedBucket.of(bucket["flattened_tensor"], Header(**bucket["header"]))
            taken.update((name, tensor.clone()) for name, tensor in came.tensors)
            return note

        note = receive.receive(
            {"folder": str(folder), "name": name}, EngineSide(self.model, CPU, {}, load, self.gather)
        )
        prints = Fingerprint()
        prints.add(list(taken.items()))
        assert note["digests"] == prints.digests(), "what the receipt compares"
        return taken

    @property
    def holds(self) -> str:
        return receive._held[self.model].version


def check_same(taken: Tensors, tensors: Tensors) -> None:
    assert list(taken) == list(tensors)
    for name, tensor in tensors.items():
        assert (taken[name].dtype, taken[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(taken[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name


def kinds(path: Path) -> list[str]:
    """What the newest version consists of."""
    return [bucket.file.partition(".")[2] for bucket in read_manifest(path, stored(path)[-1]).buckets]


def publish_steps(folder: VersionFolder, count: int) -> list[Tensors]:
    """Versions 0, 1, ... of a model that learns."""
    versions = [weights()]
    for version in range(count):
        if version:
            versions.append(stepped(versions[-1], version))
        write(folder, versions[-1], version)
    return versions
