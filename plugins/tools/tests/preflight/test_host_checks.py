"""This machine, looked at for runs that need what it has, and for others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import compose, examine
from slime.config.gpus import Gpu, table
from slime.config.hf import QUANTIZATION, config_folder
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.run_dir import RunDir
from slime.topology.topology import read_topology
from slime_cluster.ray.gpus import parse_gpus
from slime_megatron.fp8_block.config import Fp8Format
from slime_tools.preflight.host_checks import (
    Devices,
    HostFacts,
    Wanted,
    _devices,
    _other_kind,
    available_memory,
    check_host,
    digest_of,
    plugin_faults,
)
from slime_tools.preflight.hosts import _backends, _clock, _modules, complaint, notes, read_wanted

SMI = """\
0, GPU-5f0c1b7e-0a3e-7d6b-2f47-0f5a4f3f2a11, 143771, 0, NVIDIA H200
1, GPU-8d2f9a10-95c0-1c11-6d6a-7a9be10c4b42, 143771, 66036, NVIDIA H200
"""
"""What nvidia-smi prints for `slime_cluster.ray.gpus`."""

GIB, MIB = 2**30, 2**20


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wanted]:
    with RunDir.open(tmp_path_factory.mktemp("runs") / "it") as run:
        yield read_wanted(read_topology(compose(["+model=glm4-tiny", "+cluster=local"])), run)


def faults(wanted: Wanted) -> list[str]:
    return [f"{fault.what}. {fault.todo}" for fault in check_host(wanted).faults]


def test_the_drivers_own_host_is_ready(wanted: Wanted) -> None:
    seen = check_host(wanted)
    assert list(seen.faults) == []
    assert complaint({"here": seen}) is None
    assert "memory" in seen.facts


def test_another_plugin_is_named(wanted: Wanted) -> None:
    rewards = wanted.software.plugins["rewards"]
    other = wanted.software.plugins | {"rewards": rewards | {"version": "7.0"}}
    (told,) = faults(replace(wanted, software=replace(wanted.software, plugins=other)))
    assert told.startswith("plugin 'rewards' is slime-rewards 7.0 at the driver, but slime-rewards 0.1.0 there")


def test_packages_of_other_versions_are_named_together(wanted: Wanted) -> None:
    versions = {**wanted.software.versions, "Python": "3.9", "flash-attn": "3.0"}
    (told,) = faults(replace(wanted, software=replace(wanted.software, versions=versions)))
    mine = wanted.software.versions["Python"]
    assert told.startswith(f"Python is {mine} and 3.9 at the driver, flash-attn is missing and 3.0 at the driver. ")


def test_another_checkout_of_the_same_version_is_named(wanted: Wanted) -> None:
    assert {"slime", "slime_rewards"} <= wanted.software.sources.keys()
    other = {**wanted.software.sources, "slime": digest_of([Path(__file__)])}
    (told,) = faults(replace(wanted, software=replace(wanted.software, sources=other)))
    assert told == "the code of slime is not the driver's. Install the same files on every host."


def test_a_byte_or_a_name_makes_other_code(tmp_path: Path) -> None:
    file, renamed = tmp_path / "a.py", tmp_path / "b.py"
    seen = set()
    for text in ("A = 1\n", "A = 2\n"):
        file.write_text(text)
        seen.add(digest_of([file]))
    file.rename(renamed)
    assert len(seen | {digest_of([renamed])}) == 3


def test_a_run_directory_that_is_not_shared_is_found(wanted: Wanted, tmp_path: Path) -> None:
    """The host sees no directory there; then another run's, as on a disk of its own."""
    path, text = wanted.nonces["run.dir"]
    (told,) = faults(replace(wanted, nonces={"run.dir": (tmp_path / "it/lock", text)}))
    assert told.startswith(f"it finds no directory at {tmp_path / 'it'}. Put run.dir on a file system that every host")
    with RunDir.open(tmp_path / "it") as other:
        (told,) = faults(replace(wanted, nonces={"run.dir": (other.lock, text)}))
    assert told.startswith(f"it finds another directory at {tmp_path / 'it'}. ")
    assert faults(replace(wanted, nonces={"run.dir": (path, text)})) == []


def test_a_folder_of_weights_that_a_host_does_not_see_is_found(tmp_path: Path) -> None:
    """By a file in it that is like no other: the run's hold on the folder, which another run has to respect."""
    words = ["+model=glm4-tiny", "+cluster=local", f"run.dir={tmp_path}", "weights.transport=disk"]
    cfg = compose([*words, f"weights.path={tmp_path / 'shared'}"])
    with RunDir.open(tmp_path / "run") as run:
        wanted = read_wanted(read_topology(cfg), run)
        assert faults(wanted) == []
        path, _ = wanted.nonces["weights.path"]
        assert path == tmp_path / "shared/lock"
        with RunDir.open(tmp_path / "other") as other, pytest.raises(SlimeError, match="set another `weights"):
            other.take(tmp_path / "shared", "weights.path")
        path.unlink()
        (told,) = faults(wanted)
        assert told.startswith(
            f"it finds no directory at {tmp_path / 'shared'}. Put weights.path on a file system that"
        )
        with pytest.raises(SlimeError, match=f"^{tmp_path / 'shared/lock'}: it was deleted"):
            run.require_intact()
    with RunDir.open(tmp_path / "other") as other:
        other.take(tmp_path / "shared", "weights.path")


def test_a_model_that_is_missing_or_incomplete_is_found(wanted: Wanted, tmp_path: Path) -> None:
    folder, files = wanted.folders["model.path"]
    (told,) = faults(replace(wanted, folders={"model.path": (str(tmp_path / "glm4"), files)}))
    assert told == f"there is no '{tmp_path / 'glm4'}'. Put model.path where every host of the run sees it."
    (told,) = faults(replace(wanted, folders={"model.path": (folder, {**files, "model-00002.safetensors": 12})}))
    assert f"1 file(s) in '{folder}' are not the driver's: model-00002.safetensors has none, there 12 bytes" in told


def test_every_folder_that_a_host_reads_is_compared(tmp_path: Path) -> None:
    """Weights of Megatron-core that another host has in part."""
    (tmp_path / "dist").mkdir()
    for name in ("metadata.json", "__0_0.distcp"):
        (tmp_path / "dist" / name).write_bytes(b"12345")
    words = ["+model=glm4-moe-tiny", "+cluster=local", "model.init=checkpoint", f"model.weights={tmp_path / 'dist'}"]
    fp8 = resolve("pkg://slime_plugin_glm4/assets/glm4-moe-tiny")
    shutil.copytree(fp8, tmp_path / "fp8")
    config = json.loads((fp8 / "config.json").read_text()) | {QUANTIZATION: Fp8Format().to_config()}
    (tmp_path / "fp8/config.json").write_text(json.dumps(config))
    with RunDir.open(tmp_path / "it") as run:
        wanted = read_wanted(read_topology(compose([*words, f"rollout.fp8={tmp_path / 'fp8'}"])), run)
    assert wanted.folders.keys() == {"model.path", "model.weights", "rollout.fp8"}
    assert faults(wanted) == []
    (tmp_path / "dist/__0_0.distcp").write_bytes(b"1")
    (told,) = faults(wanted)
    assert told == (
        f"1 file(s) in '{tmp_path / 'dist'}' are not the driver's: __0_0.distcp has 1 bytes, there 5 bytes. "
        "Copy it again, or name a folder in model.weights that every host sees."
    )


def test_a_module_that_the_plan_needs_is_imported(wanted: Wanted) -> None:
    (told,) = faults(replace(wanted, modules=("json", "no_such_engine.core")))
    assert told.startswith("'import no_such_engine.core' fails: ModuleNotFoundError: No module named 'no_such_engine'")


def test_a_missing_device_of_infiniband_is_named(wanted: Wanted) -> None:
    (told,) = faults(replace(wanted, ib_devices=("mlx5_77",)))
    assert told.startswith("there is no InfiniBand device mlx5_77. Correct cluster.ib_devices.")


def test_too_little_memory_and_disk_are_told_at_once(wanted: Wanted, tmp_path: Path) -> None:
    """More than any machine has."""
    seen = check_host(replace(wanted, memory=2.0**60, space={str(tmp_path): 2.0**60}))
    memory, disk = [fault.what for fault in seen.faults]
    assert memory.endswith("of host memory are available, the plan needs 1048576.0 TiB")
    assert disk.endswith(f"are free in {tmp_path}, the run needs 1048576.0 TiB")
    error = complaint({"b": seen, "c": seen, "d": check_host(wanted)})
    assert str(error).startswith(f"preflight: b, c: {memory}; b, c: {disk}. End what else uses it, or use more hosts. ")


def test_memory_is_also_what_a_control_group_leaves(tmp_path: Path) -> None:
    """Files as the kernel writes them, version 2 and 1; pages of files are given back."""
    (tmp_path / "memory.max").write_text("1073741824\n")
    (tmp_path / "memory.current").write_text("536870912\n")
    (tmp_path / "memory.stat").write_text("anon 402653184\ninactive_file 134217728\n")
    assert available_memory(tmp_path) == 640 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    whole = available_memory(tmp_path)
    assert whole > 640 * MIB
    old = tmp_path / "memory"
    old.mkdir()
    (old / "memory.limit_in_bytes").write_text("268435456\n")
    (old / "memory.usage_in_bytes").write_text("134217728\n")
    (old / "memory.stat").write_text("cache 1\ntotal_inactive_file 1048576\n")
    assert available_memory(tmp_path) == 129 * MIB


@pytest.mark.parametrize(
    ("needed", "told"),
    [
        (Devices(2), []),
        (Devices(1, peak=140 * GIB), []),
        (Devices(3), ["2 GPUs are to be seen, the run takes 3"]),
        (Devices(2, peak=100 * GIB), ["GPU 1 has 75.9 GiB free, the run needs 100.0 GiB"]),
        (Devices(1, total=200 * GIB), ["GPU 0 has 140.4 GiB, the plan counts on 200.0 GiB"]),
        (Devices(1, peak=140 * GIB, are_first=False), []),  # Ray of others gives one that is free
    ],
)
def test_devices_are_counted_and_their_free_memory_compared(needed: Devices, told: list[str]) -> None:
    assert [fault.what for fault in _devices(needed, parse_gpus(SMI))] == told


@pytest.mark.parametrize(
    ("driver_name", "planned", "told"),
    [
        (
            "NVIDIA H200",
            "h100",
            ["GPU 0 is NVIDIA H200, the plan counts on h100. Set cluster.gpu=h200 and plan again."],
        ),
        ("NVIDIA H200", "h200", []),
        ("NVIDIA H100 PCIe", "h100", ["GPU 0 is NVIDIA H100 PCIe, the plan counts on h100. Set cluster.gpu=h100-pcie"]),
        ("NVIDIA H100 80GB HBM3", "h100", []),
        ("NVIDIA A100-SXM4-80GB", "a100-80", []),
        ("NVIDIA A100-SXM4-40GB", "a100-80", ["Set cluster.gpu=a100-40 and plan again."]),
        ("NVIDIA L4", "l40s", ["Set cluster.gpu=l4 and plan again."]),
        ("NVIDIA GeForce RTX 4090", "rtx4090", []),
        ("NVIDIA RTX 6000 Ada Generation", "rtx4090", ["Set cluster.gpu=rtx6000-ada and plan again."]),
        ("NVIDIA A40", "h100", ["Describe it by cluster.gpu_row (docs/gpus.md) and plan again."]),
    ],
)
def test_another_gpu_than_the_planned_one_is_told(driver_name: str, planned: str, told: list[str]) -> None:
    wanted = Devices(2, gpu=(planned, Gpu(**table()[planned])))
    seen = list(_other_kind(wanted, parse_gpus(SMI.replace("NVIDIA H200", driver_name))))
    assert len(seen) == len(told)
    assert all(part in line for part, line in zip(told, seen, strict=True))
    assert list(_other_kind(Devices(2), parse_gpus(SMI))) == [], "of a plan that names none"


def test_notes_name_their_hosts() -> None:
    one, other = (HostFacts(name, 0.0, [], {}, ["GPU 0 is another."]) for name in "ab")
    assert notes({"a": one, "b": other, "c": HostFacts("c", 0.0, [], {})}) == ["preflight: a, b: GPU 0 is another."]


def test_the_clock_is_compared_with_the_time_of_the_question() -> None:
    assert [fault.what for fault in _clock(1000.0, since=998.0, until=1001.0)] == []
    assert [fault.what for fault in _clock(1000.0, since=1042.0, until=1043.0)] == [
        "its clock is 42 s behind the driver's"
    ]
    assert [fault.what for fault in _clock(1000.0, since=900.0, until=960.0)] == [
        "its clock is 40 s ahead of the driver's"
    ]


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        (["+model=glm4.5", "+cluster=h100x64"], ["deep_ep"]),
        (["+model=glm4.5", "+cluster=h100x64", "~train.megatron.moe_flex_dispatcher_backend"], ["deep_ep"]),
        (["+model=glm5.2", "+cluster=h100x256"], ["deep_ep", "mooncake.engine"]),
        (["+model=glm4-tiny", "+cluster=local-pd"], ["mooncake.engine"]),
        (["+model=glm4-tiny", "+cluster=local"], []),
    ],
)
def test_modules_that_dispatchers_and_pairs_need_are_asked_for(words: list[str], modules: list[str]) -> None:
    """Megatron-core's own backend of `flex` is DeepEP."""
    topology = read_topology(examine(words).cfg)
    assert _modules(topology, _backends(topology)) == modules


def test_what_a_run_needs_follows_from_its_plan(tmp_path: Path) -> None:
    """Not what this machine has: nothing is looked at. glm4-9b: 9.4e9 parameters of 14 bytes, three times, and 2 bytes
    for the export."""
    words = ["+model=glm4-9b", "+cluster=h100x8", f"model.path={tmp_path / 'm'}"]
    cfg = examine(words).cfg
    shutil.copytree(resolve(config_folder(cfg.model)), tmp_path / "m")
    with RunDir.open(tmp_path / "it") as run:
        needed = read_wanted(read_topology(cfg), run)
    assert needed.devices == replace(needed.devices, count=8, total=81559.0 * MIB)
    assert 40 * GIB < needed.devices.peak <= 81559 * MIB
    assert 100 * GIB < needed.memory < 1900 * GIB
    assert needed.space[str(run.path)] == pytest.approx(9.4e9 * (3 * 14 + 2), rel=0.02)
    assert needed.space["/dev/shm"] == GIB
    cfg.train.checkpoint.in_memory_every = 2
    with RunDir.open(tmp_path / "it") as run:
        copied = read_wanted(read_topology(cfg), run)
    assert copied.space["/dev/shm"] - GIB == pytest.approx(9.4e9 * 14 * 2, rel=0.02), "the newest and the one before"
    assert copied.memory - needed.memory == pytest.approx(9.4e9 * 14 * 3, rel=0.02), "and what is copied into files"
    assert (needed.modules, tuple(needed.ib_devices)) == ([], ())


ACME = {"distribution": "acme-reward", "version": "1.0", "contributes": ["reward/acme"]}


def test_a_host_with_the_plugins_of_the_driver_has_no_fault() -> None:
    assert [*plugin_faults({"acme": ACME}, {"acme": dict(ACME)}, "node-7")] == []


@pytest.mark.parametrize(
    ("driver", "host", "what", "todo"),
    [
        (
            ACME | {"version": "2.0"},
            ACME,
            "acme-reward 2.0 at the driver, but acme-reward 1.0 there",
            "==2.0' on node-7",
        ),
        (ACME, None, "acme-reward 1.0 at the driver, but none there", "pip install acme-reward==1.0' on node-7"),
        (None, ACME, "acme-reward is installed there and not at the driver", "pip uninstall acme-reward' on node-7"),
        (ACME | {"contributes": []}, ACME, "contributing ['reward/acme'] instead of []", "acme-reward==1.0' on node-7"),
    ],
)
def test_a_host_with_another_plugin_than_the_driver_is_told_which(
    driver: dict[str, Any] | None, host: dict[str, Any] | None, what: str, todo: str
) -> None:
    ours, theirs = ({"acme": each} if each else {} for each in (driver, host))
    (fault,) = plugin_faults(ours, theirs, "node-7")
    assert what in fault.what
    assert todo in fault.todo
