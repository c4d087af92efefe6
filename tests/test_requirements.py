"""The CPU set-up, as pip would resolve it on the machine of somebody who has the public package index alone."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install_cpu", REQUIREMENTS / "install_cpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


install_cpu = load()


def resolve(*wanted: str | Path) -> list[dict[str, Any]] | None:
    """Metadata of what a stranger's pip would install, None if it finds no such builds.

    `--isolated` leaves out the environment's and the user's configuration, `--index-url` a machine's. Nothing is
    installed, and of large wheels only the metadata is read.
    """
    stranger = ["--isolated", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *stranger, *map(str, wanted)]
    if "--index-url" not in wanted:
        command += ["--index-url", "https://pypi.org/simple"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    if done.returncode:
        assert "No matching distribution" in done.stderr, done.stderr
        return None
    return [item["metadata"] for item in json.loads(done.stdout)["install"]]


@pytest.fixture(scope="module")
def _index() -> None:
    if resolve("--no-deps", "pluggy==1.7.0") is None:
        pytest.skip("the public package index cannot be reached from here")


@pytest.mark.slow
@pytest.mark.usefixtures("_index")
def test_the_torch_that_a_stranger_gets_brings_what_it_imports() -> None:
    """A CPU build needs nothing; the index's own build without its CUDA libraries is 500 MB that do not import."""
    [installed, *_] = [found for wanted in install_cpu.SOURCES.values() if (found := resolve(*wanted))]
    torch = next(item for item in installed if item["name"] == "torch")
    assert torch["version"].partition("+")[0] == "2.13.0"
    if not torch["version"].endswith("+cpu"):
        needs = [Requirement(line) for line in torch["requires_dist"]]
        asked = {
            canonicalize_name(need.name) for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})
        }
        assert {"nvidia-cudnn-cu13", "triton"} <= asked <= {canonicalize_name(item["name"]) for item in installed}


@pytest.mark.slow
@pytest.mark.usefixtures("_index")
def test_every_pin_is_on_the_public_index() -> None:
    """A mirror of this machine may have more."""
    for name in ("cpu.txt", "dev.txt"):
        assert resolve("--no-deps", "-r", REQUIREMENTS / name) is not None, f"{name} names what only this machine has"


@pytest.mark.slow
@pytest.mark.usefixtures("_index")
def test_the_gpu_extra_resolves_to_the_torch_that_the_guide_names() -> None:
    """Link by link, for the whole takes a minute: SGLang pins torch, and that torch its CUDA."""
    [wanted] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    torch = pinned("torch", by=wanted)
    cuda = pinned("cuda-toolkit", by=f"torch=={torch}")
    guide = (ROOT / "docs/install.md").read_text()
    assert f"SGLang {wanted.partition('==')[2]} pins torch {torch}" in guide
    major, minor, *_ = cuda.split(".")
    assert f"torch {torch}+cu{major}{minor}" in guide


def pinned(name: str, by: str) -> str:
    """The version of `name` that a distribution asks for with `==`."""
    found = resolve("--no-deps", by)
    assert found is not None, f"the public index has no {by}"
    [version] = {
        str(specifier.version)
        for need in map(Requirement, found[0]["requires_dist"])
        if canonicalize_name(need.name) == name
        for specifier in need.specifier
        if specifier.operator == "=="
    }
    return version
