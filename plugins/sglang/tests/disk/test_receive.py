"""An engine's reader gets the publisher's bytes, by deltas and late, or says what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slime.digest import sealed, unsealed
from slime.errors import SlimeError
from slime_sglang.disk import receive
from slime_sglang.disk.folder import stored
from slime_sglang.disk.publish import VersionFolder
from slime_sglang.disk.stored import MANIFEST, read_manifest
from slime_sglang.engine.version_check import VersionFault
from tests.publishing import Engine, check_same, kinds, publish_steps, stepped, weights, write


@pytest.fixture
def folder(tmp_path: Path) -> VersionFolder:
    return VersionFolder(tmp_path, full_every=4)


def test_an_engine_that_follows_reads_deltas_alone(folder: VersionFolder) -> None:
    """Each version's files are all that is there of it when it is read: the base is what the engine holds."""
    versions, engine = [weights()], Engine()
    for version in range(4):
        if version:
            versions.append(stepped(versions[-1], version))
        receipt = write(folder, versions[-1], version)
        name = stored(folder.path)[-1]
        check_same(engine.read(folder.path, name), versions[-1])
        manifest = read_manifest(folder.path, name)
        assert engine.holds == receipt.fingerprint == manifest.summary["fingerprint"]
        assert len(manifest.builds_on) == version
        if version:
            assert receipt.num_bytes_sent < receipt.num_bytes / 2
            for file in (folder.path / manifest.builds_on[-1]).glob("0*"):
                file.write_bytes(b"gone")
        else:
            assert receipt.num_bytes <= receipt.num_bytes_sent, "full"
    write(folder, versions[-1], 4)
    assert set(kinds(folder.path)) == {"full"}, "every fourth version"


def test_a_late_engine_reads_what_it_lacks(folder: VersionFolder) -> None:
    versions = publish_steps(folder, 4)
    names = stored(folder.path)
    late, behind = Engine(), Engine()
    check_same(behind.read(folder.path, names[1]), versions[1])
    for engine in (late, behind):
        check_same(engine.read(folder.path, names[3]), versions[3])
    check_same(late.read(folder.path, names[0]), versions[0])
    check_same(late.read(folder.path, names[3]), versions[3])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 1), "the file is damaged"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "the file is damaged"),
    "flipped": (lambda path: flip(path, 20), "the file is damaged"),
    "gone": (lambda path: path.unlink(), "the file is missing"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("kind", ["full", "delta"])
def test_a_damaged_file_is_named_and_never_built_on(folder: VersionFolder, damage, message: str, kind: str) -> None:
    tensors, engine = weights(), Engine()
    write(folder, tensors, 0)
    if kind == "delta":
        engine.read(folder.path, stored(folder.path)[-1])
        tensors = stepped(tensors)
        write(folder, tensors, 1)
    name = stored(folder.path)[-1]
    victim = folder.path / name / f"00001.{kind}"
    damage(victim)
    with pytest.raises(SlimeError, match=message) as raised:
        engine.read(folder.path, name)
    assert str(victim) in str(raised.value)
    assert engine.holds == ""
    tensors = stepped(tensors, 3)
    folder.newest = None  # as a run that starts again
    write(folder, tensors, 2)
    check_same(engine.read(folder.path, stored(folder.path)[-1]), tensors)


MANIFESTS = {
    "cut": (lambda text: text[: len(text) // 2], "the manifest is damaged"),
    "no JSON": (lambda text: "\0" + text, "the manifest is damaged"),
    "a field less": (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "base"}), "damaged"),
    "another base": (
        lambda text: sealed(unsealed(text.encode()) | {"base": "0123456789abcdef"}).decode(),
        r"'000002-v1' does not build on '000001-v0'",
    ),
}


@pytest.mark.parametrize(("damage", "message"), MANIFESTS.values(), ids=MANIFESTS)
def test_a_damaged_manifest_is_named(folder: VersionFolder, damage, message: str) -> None:
    publish_steps(folder, 2)
    path = folder.path / stored(folder.path)[-1] / MANIFEST
    path.write_text(damage(path.read_text()))
    with pytest.raises(SlimeError, match=message):
        Engine().read(folder.path, path.parent.name)


def test_no_bit_of_a_manifest_flips_unseen(folder: VersionFolder) -> None:
    """Every third one: the manifest of a tiny version has thousands."""
    publish_steps(folder, 1)
    path = folder.path / stored(folder.path)[-1] / MANIFEST
    saved = path.read_bytes()
    for bit in range(0, 8 * len(saved), 3):
        flipped = bytearray(saved)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(SlimeError, match=f"^{re.escape(str(path))}: the manifest is damaged"):
            read_manifest(folder.path, path.parent.name)


def test_a_manifest_that_is_no_file_is_named(folder: VersionFolder) -> None:
    publish_steps(folder, 1)
    path = folder.path / stored(folder.path)[-1] / MANIFEST
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(SlimeError, match="the manifest is damaged"):
        read_manifest(folder.path, path.parent.name)


def test_a_delta_never_goes_on_another_base(folder: VersionFolder) -> None:
    """The engine holds a version of another publisher, with the same layout, under the same number."""
    versions, engine = publish_steps(folder, 2), Engine()
    other = VersionFolder(folder.path / "other", full_every=4)
    write(other, weights(5), 0)
    engine.read(other.path, stored(other.path)[-1])
    check_same(engine.read(folder.path, stored(folder.path)[-1]), versions[1])
    shutil.rmtree(folder.path / stored(folder.path)[0])
    engine.read(other.path, stored(other.path)[-1])
    with pytest.raises(SlimeError, match="there is no version '000001-v0'"):
        engine.read(folder.path, stored(folder.path)[-1])
    assert engine.holds == read_manifest(other.path, stored(other.path)[-1]).summary["fingerprint"]


def test_a_version_that_the_model_refused_is_not_built_on(folder: VersionFolder) -> None:
    versions, engine = publish_steps(folder, 2), Engine()
    names = stored(folder.path)
    engine.read(folder.path, names[0])
    engine.fails_at = 1
    with pytest.raises(RuntimeError, match="no place"):
        engine.read(folder.path, names[1])
    assert engine.holds == ""
    engine.fails_at = -1
    check_same(engine.read(folder.path, names[1]), versions[1])


def test_a_version_that_is_not_there(folder: VersionFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive, "_VISIBLE_S", 0.0)
    publish_steps(folder, 1)
    with pytest.raises(SlimeError, match="there is no version '000007-v6'"):
        Engine().read(folder.path, "000007-v6")


def test_what_fails_on_one_rank_fails_on_all(folder: VersionFolder) -> None:
    """In step: no rank is left waiting for another, wherever a bucket fails, and the next version comes to both."""
    versions = publish_steps(folder, 2)
    names = stored(folder.path)
    num_buckets = len(read_manifest(folder.path, names[0]).buckets)
    offers: list[Any] = [None, None]
    barrier = threading.Barrier(2, timeout=200)

    def gather_of(rank: int, offer: Any) -> list[Any]:
        offers[rank] = offer
        barrier.wait()
        gathered = list(offers)
        barrier.wait()
        return gathered

    ranks = [Engine(partial(gather_of, rank)) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for fails_at in range(num_buckets - 1):
            ranks[1].fails_at = fails_at
            first, second = (pool.submit(rank.read, folder.path, names[0]) for rank in ranks)
            assert isinstance(second.exception(), RuntimeError)
            assert isinstance(first.exception(), VersionFault)
            assert "no place for it" in str(first.exception())
        ranks[1].fails_at = -1
        for reading in [pool.submit(rank.read, folder.path, names[1]) for rank in ranks]:
            check_same(reading.result(), versions[1])
