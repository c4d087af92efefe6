"""Files that cannot be torn, and full disks: real limits and real small file systems."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime import files
from slime.errors import SlimeError
from slime_testing.patience import run_within


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def test_replacing_a_file_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "config.yaml"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("config.yaml", b"new")]


LIMITED = """
import resource, sys
from pathlib import Path
from slime import files
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
path = Path(sys.argv[1])
with files.disk_errors(path, needed=2048):
    files.write_atomic(path, b"x" * 2048)
"""


def test_a_replacement_that_does_not_fit_keeps_the_old_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"old")
    child = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True)
    assert f"SlimeError: {path}: the disk (or a quota or file-size limit on it) is full: it needs about 2.0 KiB" in (
        child.stderr
    )
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (3e15, "2728.5 TiB")]
)
def test_human_bytes(count, text):
    assert files.human_bytes(count) == text


def test_a_refused_write_names_the_place(tmp_path):
    with pytest.raises(SlimeError, match=f"{tmp_path}: no permission to write here"), files.disk_errors(tmp_path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


FILL = """
import resource, sys
from pathlib import Path
from slime.checkpoints import CheckpointStore
from slime.errors import SlimeError
from saving import assert_holds, save
folder, kind = Path(sys.argv[1]), sys.argv[2]
store = CheckpointStore(folder, keep=2)
save(store, 10)
try:
    with store.saving(20, {"step": 20}) as staging:
        if kind == "driver":
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            (staging.path / "big").write_bytes(b"x" * 2000)
except SlimeError as error:
    print(error)
assert [path.name for path in folder.iterdir()] == ["step-000010"]
assert_holds(store.latest(), 10)
"""


@pytest.mark.parametrize("writer", ["trainer", "driver"])
def test_a_write_that_does_not_fit_is_one_line_and_costs_no_earlier_checkpoint(folder, writer):
    """A file-size limit refuses the write as a quota does (EFBIG), in the trainers' files or in the driver's own."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", FILL, str(folder), writer]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    (line,) = child.stdout.splitlines()
    assert line.startswith(
        f"{folder / 'step-000020'}: the disk (or a quota or file-size limit on it) is full: it needs about"
    )


FULL_DISK = """
import sys
from pathlib import Path
from slime import files
from slime.checkpoints import CheckpointStore
from slime.errors import SlimeError
from saving import assert_holds, save
disk = Path(sys.argv[1])
store = CheckpointStore(disk / "checkpoints", keep=2)
save(store, 10)
try:
    with store.saving(20, {}) as staging:
        (staging.path / "big").write_bytes(bytes(300_000))
except SlimeError as error:
    print(error)
(disk / "other").write_bytes(bytes(files.free_bytes(disk)))
try:
    with store.saving(20, {}):
        sys.exit("it begins without room")
except SlimeError as error:
    print(error)
assert [path.name for path in (disk / "checkpoints").iterdir()] == ["step-000010"]
assert_holds(store.latest(), 10)
"""
IN_NAMESPACE = ["unshare", "--map-root-user", "--mount"]
needs_mount = pytest.mark.skipif(
    subprocess.run([*IN_NAMESPACE, "true"], capture_output=True).returncode != 0, reason="may not mount a file system"
)


def run_on_small_disk(code, folder, size):
    """Standard output of a program whose only argument is a file system of `size` in memory."""
    mount = 'mount -t tmpfs -o size="$3" tmpfs "$1" && exec "$0" -W ignore -c "$2" "$1"'
    command = [*IN_NAMESPACE, "sh", "-c", mount, sys.executable, str(folder), code, size]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    child = run_within(100, command, env=environment)
    return child.stdout.splitlines()


@needs_mount
def test_a_full_disk_is_one_line_and_costs_no_earlier_checkpoint(tmp_path):
    """A file system of 256 KiB: first a write that does not fit, then a save refused beforehand for lack of room."""
    write, begin = run_on_small_disk(FULL_DISK, tmp_path, "256k")
    path = tmp_path / "checkpoints" / "step-000020"
    assert write.startswith(f"{path}: the disk (or a quota or file-size limit on it) is full: it needs about ")
    assert begin.startswith(f"{path}: the disk (or a quota or file-size limit on it) is full: it needs about ")


SHARDS_ON_FULL_DISK = """
import sys
from pathlib import Path
import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from slime.checkpoints import CheckpointStore
from slime.errors import SlimeError
from megatron_core_portable import cpu_stands_in_for_cuda
from slime_megatron.train.shards import ShardWriter
disk = Path(sys.argv[1])
store = CheckpointStore(disk / "checkpoints", keep=2)
torch.distributed.init_process_group("gloo", init_method=f"file://{disk}/ranks", rank=0, world_size=1)
for step, size in ((10, 1000), (20, 1_000_000)):
    state = {"weight": ShardedTensor.from_rank_offsets("weight", torch.full((size,), 0.5))}
    try:
        with cpu_stands_in_for_cuda(), store.saving(step, {}) as staging:
            dist_checkpointing.save(state, str(staging.path), ShardWriter())
    except SlimeError as error:
        print(error)
print(store.latest().step)
"""


@pytest.mark.slow
@needs_mount
def test_shards_on_a_full_disk(tmp_path):
    """2 MiB for 4 MB of weights: the error of torch's C++ writer no longer says that the disk is full; ours does."""
    line, latest = run_on_small_disk(SHARDS_ON_FULL_DISK, tmp_path, "2m")[-2:]
    path = tmp_path / "checkpoints" / "step-000020"
    assert line.startswith(f"{path}: the disk (or a quota or file-size limit on it) is full: it needs about ")
    assert latest == "10"


def test_an_error_wrapped_by_a_library_is_recognised(tmp_path):
    """Megatron's writers hand on an OSError as the cause of a RuntimeError."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(SlimeError, match="is full"), files.disk_errors(tmp_path):
        raise RuntimeError("worker failure") from full
    with pytest.raises(ValueError, match="unrelated"), files.disk_errors(tmp_path):
        raise ValueError("unrelated")
