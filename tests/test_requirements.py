"""The CPU set-up, as pip would resolve it on the machine of somebody who has the public package index alone."""

from __future__ import annotations

import json
import os
import socket
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slime.imports import import_file
from slime_testing.patience import run_within

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
LAST_TRY = "Retry(total=0,"
"""What pip prints when a connection broke and it tries for the last time."""


install_cpu = import_file(REQUIREMENTS / "install_cpu.py", "install_cpu")


@pytest.mark.parametrize(
    ("system", "machine", "why"),
    [("Darwin", "arm64", "triton, sglang"), ("Windows", "AMD64", "triton, sglang"), ("Linux", "aarch64", "llguidance")],
)
def test_another_platform_is_told_before_anything_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], system: str, machine: str, why: str
) -> None:
    monkeypatch.setattr(install_cpu.platform, "system", lambda: system)
    monkeypatch.setattr(install_cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(install_cpu, "start_rest", None)  # calling it would fail
    assert install_cpu.main() == 1
    [line] = capsys.readouterr().out.splitlines()
    assert f"this is {system} on {machine}: {why}" in line
    assert "Planning works everywhere" in line


def test_linux_on_x86_64_is_right() -> None:
    assert install_cpu.wrong_platform("Linux", "x86_64") == ""


class NoAnswerError(Exception):
    """The index cannot be reached, or stopped answering: that says nothing of what it has."""


def resolve(*wanted: str | Path) -> list[dict[str, Any]] | None:
    """Metadata of what a stranger's pip would install; None if it cannot, and then pip says why.

    `--isolated` leaves out the environment's and the user's configuration, no configuration file a machine's, which may
    hold constraints. Nothing is installed, and of large wheels only the metadata is read.

    Raises:
        NoAnswerError: pip asked several times in vain, after which it calls what it wanted missing.
    """
    stranger = ["--isolated", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *stranger, *map(str, wanted)]
    if "--index-url" not in wanted:
        command += ["--index-url", "https://pypi.org/simple"]
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    done = run_within(280, command, env=environment, check=False)
    if done.returncode:
        if LAST_TRY in done.stderr:
            raise NoAnswerError(done.stderr)
        sys.stderr.write(done.stderr)
        return None
    return [item["metadata"] for item in json.loads(done.stdout)["install"]]


def answered(*wanted: str | Path) -> list[dict[str, Any]] | None:
    """`resolve`, where an index need not be reachable."""
    with suppress(NoAnswerError):
        return resolve(*wanted)
    return None


@pytest.fixture(scope="module")
def _index() -> None:
    try:
        assert resolve("--no-deps", "pluggy==1.7.0"), "the public index has lost a release"
    except NoAnswerError:
        pytest.skip("the public package index cannot be reached from here")


@pytest.fixture
def empty_index(tmp_path: Path) -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_index_that_does_not_answer_is_no_missing_pin(empty_index: str) -> None:
    assert resolve("--index-url", empty_index, "--no-deps", "pluggy==1.7.0") is None
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NoAnswerError, match="No matching distribution found for pluggy"):
        resolve("--index-url", f"http://127.0.0.1:{port}", "--retries", "1", "--no-deps", "pluggy==1.7.0")


@pytest.mark.slow
@pytest.mark.usefixtures("_index")
def test_the_torch_that_a_stranger_gets_brings_what_it_imports() -> None:
    """A CPU build needs nothing; the index's own build without its CUDA libraries is 500 MB that do not import."""
    installed = next(found for wanted in install_cpu.SOURCES.values() if (found := answered(*wanted)))
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
    names = ("cpu.txt", "dev.txt")
    with ThreadPoolExecutor() as pool:  # pip waits for the index most of the time
        found = list(pool.map(lambda name: resolve("--no-deps", "-r", REQUIREMENTS / name), names))
    assert [name for name, each in zip(names, found, strict=True) if each is None] == [], "only this machine has all"


@pytest.mark.slow
@pytest.mark.usefixtures("_index")
def test_the_gpu_extra_resolves_to_the_torch_that_the_guide_names() -> None:
    """Link by link, for the whole takes a minute: SGLang pins torch, and that torch its CUDA."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    [wanted] = [line for line in extra if line.startswith("sglang==")]
    torch = pinned("torch", by=wanted)
    cuda = pinned("cuda-toolkit", by=f"torch=={torch}")
    guide = (ROOT / "docs/install.md").read_text()
    assert f"SGLang {wanted.partition('==')[2]} pins torch {torch}" in guide
    major, minor, *_ = cuda.split(".")
    assert f"torch {torch}+cu{major}{minor}" in guide


def test_pre_commit_has_the_ruff_of_the_checks() -> None:
    [ruff, _] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"ruff=={ruff['rev'].removeprefix('v')}" in (REQUIREMENTS / "dev.txt").read_text().split()


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
