"""The checkpoint store: what it saves comes back, and every kind of damage is seen."""

import json
import os
from pathlib import Path

import pytest

import slime
from slime import checkpoints, files
from slime.checkpoints import CONVERTED, CheckpointStore, require_as_written
from slime.digest import DigestingFile, sealed
from slime.errors import SlimeError
from tests.saving import assert_holds, comes_to_hold, content, save


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def test_what_was_saved_comes_back(folder):
    store = CheckpointStore(folder, keep=2)
    assert store.latest() is None
    save(store, 10)
    assert_holds(store.latest(), 10)
    manifest = json.loads((folder / "step-000010" / "manifest.json").read_text())
    assert manifest["step"] == 10
    assert set(manifest["files"]) == {*content(10), "driver.json"}


def test_only_the_newest_are_kept(folder):
    store = CheckpointStore(folder, keep=2)
    for step in (5, 10, 1_000_000):
        save(store, step)
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000010", "step-1000000"]
    assert comes_to_hold(folder, "step-000010", "step-1000000")
    assert_holds(store.latest(), 1_000_000)


def test_keep_nothing_is_refused(folder):
    with pytest.raises(SlimeError, match=r"train\.checkpoint\.keep: cannot keep 0 checkpoints"):
        CheckpointStore(folder, keep=0)


def truncated(path):
    (path / "model/shard-0.bin").write_bytes(b"x")


def flipped(path):
    data = bytearray((path / "model/shard-0.bin").read_bytes())
    data[500] ^= 1
    (path / "model/shard-0.bin").write_bytes(data)


def replace(path, make):
    (path / "manifest.json").unlink()
    make(path / "manifest.json")


def endless(path):
    path.symlink_to("/dev/zero")


def huge(path):
    with path.open("wb") as file:
        file.truncate(2**40)  # takes no room


UNREADABLE = [
    (Path.mkdir, "cannot be read (it is no file)"),
    (lambda path: path.symlink_to(path), "cannot be read (Too many levels of symbolic links)"),
    (endless, "cannot be read (it is no file)"),
    (os.mkfifo, "cannot be read (it is no file)"),
    (huge, "cannot be read (it has more than 64.0 MiB)"),
    (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read (Input/output error)"),
]


def sign(path, files):
    """By hand, as nobody does by accident."""
    (path / "manifest.json").write_bytes(sealed({"step": 20, "slime": "0.0", "saved_at": 0.0, "files": files}))


SIGNED = [
    ({}, "lists no files"),
    ([], "lists no files"),
    (None, "lists no files"),
    ({"driver.json": None}, "lists 'driver.json' without its size and digest"),
    ({"driver.json": {"bytes": None, "crc32": "00000000"}}, "lists 'driver.json' without its size and digest"),
]


def said(caplog):
    """What the store said, and nobody else: the collector may find a connection of an earlier test meanwhile."""
    return [record.getMessage() for record in caplog.records if record.name == "slime.checkpoints"]


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (truncated, "model/shard-0.bin has 1 bytes instead of 1020"),
        (flipped, "model/shard-0.bin has other content than was saved: its CRC-32 is "),
        (lambda path: (path / "driver.json").unlink(), "driver.json is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        *(
            (lambda path, data=data: (path / "manifest.json").write_bytes(data), f"manifest.json {problem}")
            for data, problem in [
                (b"{", "is not JSON"),
                (b"\xff\x00", "is not JSON"),
                (b"[" * 100_000, "is not JSON"),
                (b"{}", "is not a manifest"),
                (b"[]", "is not a manifest"),
                (b"null", "is not a manifest"),
                (b'{"step": 20, "slime": "0.0", "files": [], "crc32": null}', "has other content than was saved"),
            ]
        ),
        (lambda path: path.rename(path.with_name("step-000021")), "manifest.json is of step 20"),
        *((lambda path, make=make: replace(path, make), f"manifest.json {problem}") for make, problem in UNREADABLE),
        *((lambda path, files=files: sign(path, files), f"manifest.json {problem}") for files, problem in SIGNED),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder, caplog, damage, problem):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    save(store, 20)
    damage(folder / "step-000020")
    assert_holds(store.latest(), 10)
    [message] = said(caplog)
    assert message.startswith(f"skipping damaged checkpoint {store.all()[-1].path}: {problem}")
    save(store, 20)
    assert_holds(CheckpointStore(folder, keep=2).all()[1], 20)


def test_no_bit_flips_unseen(memory_folder):
    """In any file, the manifest included: each bit of it, and every seventh of the others, which are longer."""
    save(CheckpointStore(memory_folder, keep=1), 10)
    (checkpoint,) = CheckpointStore(memory_folder, keep=1).all()
    for path in files.files_under(checkpoint.path):
        saved, manifest = path.read_bytes(), path.name == "manifest.json"
        for bit in range(0, 8 * len(saved), 1 if manifest else 7):
            flipped = bytearray(saved)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            assert checkpoint.problem().startswith(path.relative_to(checkpoint.path).as_posix()), (path, bit)
        path.write_bytes(saved)
    assert checkpoint.problem() == ""


def test_a_flipped_bit_of_a_large_file_is_seen(folder):
    """Its digest is taken while it is written, at any size; no second reading is paid for."""
    store = CheckpointStore(folder, keep=1)
    with store.saving(10, {}) as staging, DigestingFile(staging.path / "large") as file:
        for _ in range(70):
            file.write(bytes(2**20))
        file.flush()
        staging.written["large"] = file.facts
    assert store.latest().step == 10
    with (folder / "step-000010/large").open("r+b") as damaged:
        damaged.seek(67 * 2**20)
        damaged.write(b"\x01")
    with pytest.raises(SlimeError, match="large has other content than was saved"):
        store.latest()


def test_a_file_that_cannot_be_read_has_no_digest(tmp_path):
    """The first page of a process's memory is never mapped: reading it is an I/O error, as of a bad sector."""
    (tmp_path / "empty").touch()
    bad, empty = checkpoints.examine([Path("/proc/self/mem"), tmp_path / "empty"])
    assert bad["crc32"] == "unreadable (Input/output error)"
    assert empty == {"bytes": 0, "crc32": "00000000"}


def test_whoever_reads_for_the_store_gets_every_file_of_a_checkpoint(folder):
    save(CheckpointStore(folder, keep=1), 10)
    asked = []

    def examine(paths):
        asked.extend(paths)
        return checkpoints.examine(paths)

    assert_holds(CheckpointStore(folder, keep=1).latest(examine), 10)
    path = folder / "step-000010"
    assert asked == [path / name for name in ("driver.json", "model/common.pt", "model/shard-0.bin")]


def test_damaged_checkpoints_do_not_push_good_ones_out(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    save(store, 20)
    truncated(folder / "step-000020")
    assert store.latest().step == 10
    save(store, 15)
    assert [checkpoint.step for checkpoint in store.all()] == [10, 15, 20]


@pytest.mark.parametrize("name", ["step-abc1", "step-7", "step-0000007", "step-000007 (copy)", "step-00000٣"])
def test_a_folder_of_another_name_is_ignored_with_a_word(folder, caplog, name):
    store = CheckpointStore(folder, keep=2)
    (folder / name).mkdir(parents=True)
    assert store.latest() is None
    save(store, 10)
    assert_holds(store.latest(), 10)
    assert said(caplog) == 2 * [f"ignoring {folder / name}: it has not the name of a checkpoint, such as step-000010"]
    assert (folder / name).exists()


def test_a_checkpoint_of_another_version_is_taken_with_a_word(folder, caplog, monkeypatch):
    store = CheckpointStore(folder, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(slime, "__version__", "0.0.7")
        save(store, 10)
    assert_holds(store.latest(), 10)
    assert said(caplog) == [f"{folder / 'step-000010'} was saved by slime 0.0.7, this is {slime.__version__}"]


@pytest.mark.parametrize("found", [None, b"half"])
def test_a_file_that_a_trainer_wrote_elsewhere_is_missed(folder, found):
    """Where run.dir is not shared, the driver does not see what the ranks on other hosts wrote."""
    store = CheckpointStore(folder, keep=1)
    with (  # noqa: PT012
        pytest.raises(
            SlimeError, match=r"__3_0\.distcp: .* is not here. Put run\.dir on a file system that every host"
        ),
        store.saving(10, {}) as staging,
    ):
        staging.written["__3_0.distcp"] = {"bytes": 10, "crc32": "0123abcd"}
        if found:
            (staging.path / "__3_0.distcp").write_bytes(found)
    assert list(folder.iterdir()) == []


def test_a_run_does_not_start_over_by_itself_because_every_checkpoint_is_damaged(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    truncated(folder / "step-000010")
    with pytest.raises(SlimeError, match=r"is damaged \(model/shard-0.bin has 1 bytes instead of 1010\)"):
        store.latest()


def test_a_step_is_saved_once(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    with pytest.raises(AssertionError, match="step 10 is already saved"):
        save(store, 10)
    assert_holds(store.latest(), 10)


def test_a_save_that_fails_leaves_nothing_behind(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    with pytest.raises(FileNotFoundError), store.saving(20, {}) as staging:
        (staging.path / "half").touch() or (staging.path / "missing").read_bytes()
    assert [path.name for path in folder.iterdir()] == ["step-000010"]


def test_everything_is_synced_before_it_is_published(folder, monkeypatch):
    synced, published = set(), []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor):
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(self, target):
        published.append((self.name, set(synced)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    save(CheckpointStore(folder, keep=1), 10)
    data = {"shard-0.bin", "common.pt", "driver.json", "model", ".step-000010.partial"}
    assert [name for name, _ in published] == [".manifest.json.new", ".step-000010.partial"]
    assert published[0][1] >= data | {".manifest.json.new"}
    assert "checkpoints" in synced


def test_driver_state_is_data(folder):
    store = CheckpointStore(folder, keep=2)
    state = {"buffer": {"hook": lambda: None}}
    with pytest.raises(SlimeError, match=r"state\.buffer\.hook is of type builtins\.function"), store.saving(10, state):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "data",
    [
        '{"position": 1}'.encode("utf-16"),
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"a": {"$": ["bytes", 3]}}',
        b'{"a": {"$": ["what", "3"]}}',
        b'{"a": {"$": ["<i4", "AAA="]}}',
        b'{"a": {"$": ["Decimal", "x"]}}',
        b'{"a": {"$": 5}}',
    ],
)
def test_a_driver_state_that_slime_did_not_write_is_one_line(folder, data):
    store = CheckpointStore(folder, keep=1)
    save(store, 10)
    (folder / "step-000010/driver.json").write_bytes(data)
    with pytest.raises(SlimeError, match=r"^\S*/step-000010/driver\.json: it is not what slime writes \(.*\)\. Put it"):
        store.all()[0].driver_state()


def test_weights_that_a_run_starts_from_are_compared(folder, tmp_path):
    """Those of another run's checkpoint, also under another name; every kind of damage to it is named."""
    store = CheckpointStore(folder, keep=1)
    save(store, 10)
    weights = store.latest().path.rename(tmp_path / "mine")
    read = []
    require_as_written(weights, lambda paths: read.append(len(paths)) or checkpoints.examine(paths))
    assert read == [len(content(10)) + 1]
    flipped(weights)
    with pytest.raises(SlimeError, match=r"^model\.weights: .*/mine is not what was written: model/shard-0\.bin has"):
        require_as_written(weights)
    (weights / "manifest.json").write_text("{}")
    with pytest.raises(SlimeError, match=r"mine is not what was written: manifest\.json is not a manifest\. Copy or"):
        require_as_written(weights)


def test_weights_that_were_converted_are_compared(tmp_path, caplog):
    (tmp_path / "a.distcp").write_bytes(b"123")
    require_as_written(tmp_path)
    assert said(caplog) == [f"{tmp_path} has neither manifest.json nor {CONVERTED}: its files are not compared"]
    facts = {"a.distcp": checkpoints.facts_of(tmp_path / "a.distcp")}
    (tmp_path / CONVERTED).write_text(json.dumps({"conversion": "hf-to-dist", "files": facts}))
    require_as_written(tmp_path)
    assert len(said(caplog)) == 1
    (tmp_path / "a.distcp").write_bytes(b"124")
    with pytest.raises(SlimeError, match=r"a\.distcp has other content"):
        require_as_written(tmp_path)
    (tmp_path / CONVERTED).write_text("[]")
    with pytest.raises(SlimeError, match=f"{CONVERTED} is not a manifest"):
        require_as_written(tmp_path)
