"""The shards of a trainer's checkpoint, in Megatron-core's `torch_dist` format: digested as they are written, and read
without running what a stranger may have put into their pickles.

Megatron's own writer forks two processes a rank for each save, which a process full of threads should not do, and
offers no place for a digest. torch's writes the same format from threads through streams that a subclass can open.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from slime.digest import DigestingFile, FileFacts
from slime.errors import SlimeError
from slime_megatron.train.host_memory import HostMemory

T = TypeVar("T")
_NUM_THREADS = 2
"""Files, and threads that write them, a rank."""
_NICE = 10
"""Of these threads, beside the process."""

_NO_PICKLE = (pickle.UnpicklingError, AttributeError, EOFError, LookupError, TypeError, ValueError)
"""What bytes raise that are read as a pickle and are none."""
_INDEX = ".metadata"
"""Which part of which tensor lies where: a pickle of torch's."""
_IN_INDEX = {
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}
"""What that pickle may refer to, beside dtypes."""
_WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Has `torch.load` refuse code also where it is told not to, as torch's reader of shards tells it."""


class HostCopy:
    """Where a rank's part of a checkpoint waits until it is written. Its memory stays for those that follow, as
    does what ranks have agreed upon.

    Args:
        group: of all ranks, on CPUs, which nothing else uses.

    Attributes:
        distributions: who of a data-parallel group writes what, by the parts that a state has.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self._memory = group, HostMemory()
        self._writing: Future[Any] | None = None
        self.distributions: dict[tuple[bool, ...], Any] = {}

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """As `host_copies`, once what is there is written."""
        if self._writing is not None:
            wait([self._writing])
        return host_copies(tensors, self._memory)

    def write(self, work: Callable[[], T]) -> Future[T]:
        """Write the copies, by `work` in a thread to which steps of the training go first on busy cores."""
        thread = ThreadPoolExecutor(1, "checkpoint", initializer=os.nice, initargs=(_NICE,))
        self._writing = writing = thread.submit(work)
        thread.shutdown(wait=False)
        return writing


class ShardWriter(SaveShardedStrategy):  # type: ignore[misc]
    """Megatron-core's strategy to save shards.

    Args:
        host_copy: `save` copies this rank's part there and returns, and a thread writes the copy. None: `save` writes.

    Attributes:
        written: facts of every file that this rank wrote, by name, once they are written.
    """

    can_handle_sharded_objects = True

    def __init__(self, host_copy: HostCopy | None = None) -> None:
        super().__init__("torch_dist", 1)
        self.written: dict[str, FileFacts] = {}
        self._host_copy = host_copy
        self._writing: Future[None] | None = None

    def writer(self, folder: str | Path) -> ShardFiles:
        """What writes the files of a rank."""
        return ShardFiles(folder, _NUM_THREADS)

    def planner(self) -> MCoreSavePlanner:
        """What finds the values of each part."""
        return MCoreSavePlanner(flatten_state_dict=False)

    def save(self, sharded_state_dict: ShardedStateDict, checkpoint_dir: str | Path) -> None:
        """Collective: write this rank's part, or begin to."""
        shards, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        if self._host_copy is None:
            self._write(mcore_to_pyt_state_dict(shards), checkpoint_dir, None)
            return
        # Other objects are pickled by `mcore_to_pyt_state_dict`, while they last.
        parts = [part for each in shards.values() for part in each if isinstance(part, ShardedTensor)]
        for part, copy in zip(parts, self._host_copy.copies([part.data.detach() for part in parts]), strict=True):
            part.data = copy
        state, group = mcore_to_pyt_state_dict(shards), self._host_copy.group
        self._writing = self._host_copy.write(partial(self._write, state, checkpoint_dir, group))

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._writing is None or self._writing.done()

    def wait(self) -> None:
        """Until the files are written; raises what their thread raised."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, shards: dict[str, Any], folder: str | Path, group: dist.ProcessGroup | None) -> None:
        writer = self.writer(folder)
        with _no_zip_crc():
            save(shards, storage_writer=writer, planner=self.planner(), process_group=group)
        self.written = writer.files.written


def host_copies(tensors: Sequence[Tensor], memory: HostMemory) -> list[Tensor]:
    """Copies in host memory, with the strides of the originals: what several tensors share is copied once, and what
    lies between the elements of one is not gathered on its device first."""
    copies: list[Tensor] = [torch.empty(0)] * len(tensors)
    stretches: dict[tuple[int, torch.dtype], list[tuple[int, int, int]]] = {}
    for number, tensor in enumerate(tensors):
        first = int(tensor.storage_offset())
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel():
            stretches.setdefault((tensor.untyped_storage().data_ptr(), tensor.dtype), []).append((first, last, number))
        else:
            copies[number] = tensor.to("cpu")
    found = list[tuple[Tensor, list[tuple[int, int, int]]]]()
    for parts in stretches.values():
        parts.sort()
        while parts:
            start, stop, _ = parts[0]
            count = 0
            while count < len(parts) and parts[count][0] <= stop:
                stop, count = max(stop, parts[count][1]), count + 1
            found.append((tensors[parts[0][2]].as_strided((stop + 1 - start,), (1,), start), parts[:count]))
            del parts[:count]
    blocks = memory.blocks([stretch.nbytes for stretch, _ in found])
    for (stretch, parts), block in zip(found, blocks, strict=True):
        copy = block.view(stretch.dtype).copy_(stretch, non_blocking=True)
        for first, _, number in parts:
            original = tensors[number]
            copies[number] = copy.as_strided(original.shape, original.stride(), first - parts[0][0])
    if any(stretch.is_cuda for stretch, _ in found):
        torch.cuda.synchronize()
    return copies


class ShardFiles(FileSystemWriter):
    """torch's writer of a rank's files."""

    def __init__(self, folder: str | Path, num_threads: int) -> None:
        super().__init__(folder, thread_count=num_threads)
        self.fs = self.files = _Files()

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Raises what a thread of torch's writer raised: torch itself loses it, and with it a file."""
        results = super().write_data(plan, planner)
        if self.files.failures:
            raise self.files.failures[0]
        assert len(results.value()) == len(plan.items), "every item was written"
        return results


class _Files(FileSystem):
    def __init__(self) -> None:
        self.written: dict[str, FileFacts] = {}
        self.failures: list[BaseException] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", "it only writes"
        try:
            torch.serialization.set_crc32_options(False)  # again: in newer versions each thread has its own setting
            with DigestingFile(Path(path)) as stream:
                yield stream
            self.written[Path(path).name] = stream.facts
        except BaseException as error:
            self.failures.append(error)
            raise

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


@contextmanager
def _no_zip_crc() -> Iterator[None]:
    """Spare the checksum of each record in torch's zip format, which torch itself never compares."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


@contextmanager
def only_data(folder: Path) -> Iterator[None]:
    """Context to read a checkpoint in, which may be a stranger's: its pickles hold tensors and plain values, no code.

    Raises:
        SlimeError: the index of the shards refers to something else.
    """
    if (index := folder / _INDEX).is_file():
        with index.open("rb") as file:
            _read_index(file)
    os.environ[_WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[_WEIGHTS_ONLY]


def _read_index(file: BinaryIO) -> None:
    try:
        found = _IndexReader(file).load()
    except _NO_PICKLE as error:
        found = error
    if not isinstance(found, Metadata):
        todo = "Copy or convert the checkpoint again, or name another."
        raise SlimeError(f"it is no index of shards ({str(found)[:200]})", where=file.name, todo=todo)


class _IndexReader(pickle.Unpickler):
    """Reads the index once before torch does, which would run whatever it holds."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._where = file.name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _IN_INDEX or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        todo = "Somebody put it there: do not use this checkpoint."
        raise SlimeError(f"the index is not data alone, it refers to {module}.{name}", where=self._where, todo=todo)
