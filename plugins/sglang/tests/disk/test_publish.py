"""Versions into a folder, and out of it again: what is written, what is removed, and what a kill leaves."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slime.errors import SlimeError
from slime_megatron.fp8_block.quantizer import quantize
from slime_sglang.disk import receive
from slime_sglang.disk.folder import stored
from slime_sglang.disk.publish import VersionFolder
from slime_sglang.disk.stored import read_manifest
from tests.publishing import Engine, check_same, kinds, publish_steps, stepped, weights, write


@pytest.fixture
def folder(tmp_path: Path) -> VersionFolder:
    return VersionFolder(tmp_path, full_every=4)


def test_old_versions_go_and_the_newest_can_always_be_read(folder: VersionFolder) -> None:
    tensors = weights()
    for version in range(12):
        write(folder, tensors, version)
        names = stored(folder.path)
        assert len(names) <= 2 + folder.full_every - 1
        assert names[-1].endswith(f"-v{version}")
        check_same(Engine().read(folder.path, names[-1]), tensors)
        tensors = stepped(tensors, version)


def test_without_deltas_all_versions_are_full(tmp_path: Path) -> None:
    folder, engine = VersionFolder(tmp_path, full_every=1), Engine()
    for version in range(3):
        write(folder, weights(version), version)
        assert set(kinds(tmp_path)) == {"full"}
        assert folder.newest is None
        check_same(engine.read(tmp_path, stored(tmp_path)[-1]), weights(version))
        assert not receive._held[engine.model].buckets, "nothing is kept"
    assert len(stored(tmp_path)) == 2


def test_other_weights_make_a_full_version(folder: VersionFolder) -> None:
    """A delta to weights that have nothing to do with them would be larger."""
    generator = torch.Generator().manual_seed(9)  # all bits, since the exponents of drawn floats compress
    first, second = (torch.randint(256, (16_000,), dtype=torch.uint8, generator=generator) for _ in range(2))
    write(folder, {"w": first}, 0)
    receipt = write(folder, {"w": second}, 1)
    manifest = read_manifest(folder.path, stored(folder.path)[-1])
    assert (receipt.num_bytes_sent, list(manifest.builds_on)) == (receipt.num_bytes, [])


def test_only_buckets_of_the_same_layout_have_deltas(folder: VersionFolder) -> None:
    tensors = weights()
    write(folder, tensors, 0)
    changed = {**stepped(tensors), "b.weight": torch.zeros(40, 41, dtype=torch.bfloat16)}
    engine = Engine()
    engine.read(folder.path, stored(folder.path)[-1])
    write(folder, changed, 1)
    assert {"full", "delta"} == set(kinds(folder.path))
    for each in (engine, Engine()):
        check_same(each.read(folder.path, stored(folder.path)[-1]), changed)


def test_fp8(folder: VersionFolder) -> None:
    """The quantised bytes: one value more or less in a block may change its scale, and so all of its bytes."""
    generator, engine = torch.Generator().manual_seed(0), Engine()
    matrix = torch.randn(300, 260, generator=generator) * 0.02
    sizes = []
    for version in range(3):
        weight, scales = quantize([matrix.bfloat16()])[0]
        tensors = {"w": weight, "w_scale_inv": scales}
        sizes.append(write(folder, tensors, version).num_bytes_sent)
        check_same(engine.read(folder.path, stored(folder.path)[-1]), tensors)
        matrix = matrix + 1e-6 * torch.randn(matrix.shape, generator=generator)
    assert sizes[2] < sizes[0] / 4


def test_nan_and_zero_keep_their_bits(folder: VersionFolder) -> None:
    bits = torch.tensor([0x7FC0, 0x7FC1, -1, 0, -0x8000], dtype=torch.int16).repeat(200)
    engine = Engine()
    for version in range(3):
        tensors = {"w": bits.roll(version).view(torch.bfloat16)}
        write(folder, tensors, version)
        check_same(engine.read(folder.path, stored(folder.path)[-1]), tensors)
    assert kinds(folder.path) == ["delta"]


def test_a_resumed_run_may_publish_a_number_again(folder: VersionFolder) -> None:
    """Its versions are newer than those with higher numbers of the run that died."""
    publish_steps(folder, 4)
    resumed = VersionFolder(folder.path, full_every=4)
    write(resumed, weights(8), 1)
    newest = stored(folder.path)[-1]
    assert newest.endswith("-v1")
    assert set(kinds(folder.path)) == {"full"}
    check_same(Engine().read(folder.path, newest), weights(8))


KILLS = {
    "before a file": ("slime_sglang.disk.publish:DigestingFile", False, 0),
    "in a file": ("slime_sglang.disk.publish:DigestingFile", True, 0),
    "before the manifest": ("slime.files:write_atomic", False, 0),
    "before the rename": ("slime.files:write_atomic", True, 0),
    "after the rename": ("slime_sglang.disk.publish:publish_folder", True, 1),
}
"""Where, whether after what happens there, and the newest version then."""


def publish_and_die(path: Path, where: str, after: bool) -> None:
    """Version 0, and version 1 until a SIGKILL."""
    module, _, name = where.partition(":")
    folder, home = VersionFolder(path, full_every=4), importlib.import_module(module)
    original = getattr(home, name)
    write(folder, weights(), 0)

    def die(*arguments):
        if after:
            original(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(home, name, die)
    write(folder, stepped(weights()), 1)


def publish_until_full(path: Path) -> None:
    """Files may have fewer bytes than the second bucket needs, which fails as a full disk does."""
    folder = VersionFolder(path, full_every=1)
    write(folder, weights(), 0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    try:
        write(folder, weights(1), 1)
    except SlimeError as error:
        (path / "error").write_bytes(str(error).encode())


def in_children(path: Path) -> None:
    """Every way to end, each in a fork of this process."""
    torch.set_num_threads(1)
    for name, (where, after, _) in KILLS.items():
        if os.fork() == 0:
            publish_and_die(path / name, where, after)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL, name
    if os.fork() == 0:
        publish_until_full(path / "full")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What publishers left that ended before they should have, a folder each."""
    path = tmp_path_factory.mktemp("ended")
    here = Path(__file__)
    command = (
        f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as it; from pathlib import Path"
    )
    run = f"{command}; it.in_children(Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("name", KILLS)
def test_killed_between_two_phases(ended: Path, name: str) -> None:
    folder, newest = VersionFolder(ended / name, full_every=4), KILLS[name][2]
    names = stored(folder.path)
    assert names[-1].endswith(f"-v{newest}")
    check_same(Engine().read(folder.path, names[-1]), stepped(weights()) if newest else weights())
    write(folder, weights(3), 2)
    check_same(Engine().read(folder.path, stored(folder.path)[-1]), weights(3))
    assert not list(folder.path.glob(".*")), "what was torn is gone"


def test_a_full_disk_leaves_the_last_version_and_says_so(ended: Path) -> None:
    path = ended / "full"
    error = (path / "error").read_text()
    assert "is full" in error
    assert "`weights.path`" in error
    assert stored(path) == ["000001-v0"]
    assert not list(path.glob(".*"))
    check_same(Engine().read(path, "000001-v0"), weights())
