"""The files of copies in the memory of a host: whole or not there, and gone with who keeps them."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slime.cluster import copy_keeper
from slime.cluster.copy_keeper import Copying, CopyKeeper, Sources
from slime_testing.patience import Patience


class Here:
    """A keeper in this process, with Ray's way to call it."""

    def __init__(self, keeper: CopyKeeper) -> None:
        for name in ("begin", "held", "write", "mark", "read"):
            setattr(self, name, SimpleNamespace(remote=getattr(keeper, name)))


class Written:
    """Files that a rank has written, or none of it where the disk is full."""

    is_done = True

    def __init__(self, folder: Path, files: dict[str, bytes] | None) -> None:
        self.folder, self.files = folder, files

    def wait(self) -> dict[str, Any]:
        if self.files is None:
            raise OSError(28, "No space left on device")
        for name, data in self.files.items():
            (self.folder / name).write_bytes(data)
        return {name: {} for name in self.files if name.startswith("__")}


@pytest.fixture
def keepers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CopyKeeper]]:
    """Those of two hosts."""
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "get", lambda value: value)
    found = [CopyKeeper("test"), CopyKeeper("test")]
    yield found
    for keeper in found:
        keeper._cleaner.stdin.close()
    assert Patience(30, list).wait_for(lambda: not any(keeper.place().exists() for keeper in found))


def copied(keepers: list[CopyKeeper], step: int, rank: int, files: dict[str, bytes] | None) -> str:
    """Have a rank of its own host copy its files; returns what went wrong."""
    folder = keepers[rank].place() / str(step)
    copying = Copying(Written(folder, files), folder, rank, Here(keepers[1 - rank]))
    assert Patience(30, list).wait_for(lambda: copying.fault is not None)
    assert copying.fault is not None
    return copying.fault


FILES = [
    {"__0_0.distcp": random.Random(0).randbytes(200_003), "common.pt": b"common"},
    {"__1_0.distcp": b"", "__1_1.distcp": b"1"},
]


def test_every_host_has_the_files_of_its_ranks_and_of_others(
    keepers: list[CopyKeeper], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copy_keeper, "CHUNK", 65_536)
    for keeper in keepers:
        assert keeper.begin(3, None) == ""
        assert keeper.held() == {3: {}}
    assert copied(keepers, 3, 0, FILES[0]) == ""
    assert keepers[1].held() == {3: {0: {name: len(data) for name, data in FILES[0].items()}}}
    assert copied(keepers, 3, 1, FILES[1]) == ""
    assert keepers[0].held() == keepers[1].held()
    sources = Sources(3, {name: (Here(keepers[1]), len(data)) for files in FILES for name, data in files.items()})
    sources.fetch_small(tmp_path / "3")
    assert [path.name for path in (tmp_path / "3").iterdir()] == ["common.pt"]
    for files in FILES:
        for name, data in files.items():
            with sources.open(name) as stream:
                assert stream.read() == data
    with sources.open("__0_0.distcp") as stream:
        stream.seek(-3, io.SEEK_END)
        assert stream.read() == FILES[0]["__0_0.distcp"][-3:]
        stream.seek(70_000)
        assert (stream.read(5), stream.tell()) == (FILES[0]["__0_0.distcp"][70_000:70_005], 70_005)


def test_a_copy_that_fails_leaves_the_one_before(keepers: list[CopyKeeper]) -> None:
    for keeper in keepers:
        keeper.begin(3, None)
    assert [copied(keepers, 3, rank, files) for rank, files in enumerate(FILES)] == ["", ""]
    for keeper in keepers:
        keeper.begin(4, 3)
    assert copied(keepers, 4, 0, None) == "[Errno 28] No space left on device"
    assert copied(keepers, 4, 1, FILES[1]) == ""
    assert {step: sorted(ranks) for step, ranks in keepers[0].held().items()} == {3: [0, 1], 4: [1]}
    for keeper in keepers:
        keeper.begin(4, 3)
        assert keeper.held()[4] == {}
        keeper.begin(5, None)
        assert keeper.held() == {5: {}}


def test_no_copy_begins_where_it_would_not_fit(keepers: list[CopyKeeper], monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = keepers[0]
    assert keeper.begin(1, None) == ""
    (keeper.place() / "1" / "__0_0.distcp").write_bytes(bytes(1 << 20))
    monkeypatch.setattr(copy_keeper, "LEAST", 1 << 19)
    monkeypatch.setattr(copy_keeper, "free_bytes", lambda path: (1 << 20) - 1)
    assert keeper.begin(2, 1) == "1024.0 KiB are free in /dev/shm, and it takes 1.0 MiB"
    monkeypatch.setattr(copy_keeper, "free_bytes", lambda path: 1 << 20)
    assert keeper.begin(2, 1) == ""


def keep(told: Any) -> None:
    keeper = CopyKeeper("test")
    keeper.begin(1, None)
    told.send(keeper.place())
    signal.pause()


def test_the_memory_is_free_when_the_keeper_is_killed() -> None:
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=keep, args=(its,))
    process.start()
    assert mine.poll(60)
    folder = mine.recv()
    assert (folder / "1").is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert Patience(30, list).wait_for(lambda: not folder.exists())
