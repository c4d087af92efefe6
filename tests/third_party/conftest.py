"""A scratch environment with slime's dependencies but no slime, and pip to install built wheels into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIRST_PARTY = [ROOT, *(pyproject.parent for pyproject in sorted(ROOT.glob("plugins/*/*/pyproject.toml")))]
LIMIT_S = 300
collect_ignore = ["closeness", "broken"]  # their tests run where they are installed


def pip(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What pip of this environment prints."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the folder of wheels that pip may install into it."""

    folder: Path
    wheels: Path
    path: tuple[Path, ...] = ()

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def build(self, *projects: Path) -> None:
        pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", self.wheels, *projects)

    def install(self, *names: str) -> None:
        """`pip install` by name, without network: what they depend on is there, or among the wheels."""
        pip("--python", self.python, "install", "--no-index", "--find-links", self.wheels, *names)

    def would_change(self, *arguments: str, cwd: Path) -> list[str]:
        """The distributions that `pip ARGUMENTS`, an installation, would install or replace; it changes nothing."""
        dry = ("--dry-run", "--report", "-", "--no-index", "--no-build-isolation")
        report = json.loads(pip("--python", self.python, *arguments, *dry, cwd=cwd))
        return [item["metadata"]["name"] for item in report["install"]]

    def beside(self, folder: Path, name: str) -> Environment:
        """This environment with one more distribution, which lies in `folder` and leaves the environment unchanged."""
        pip("install", "--no-index", "--find-links", self.wheels, "--no-deps", "--target", folder, name)
        return Environment(self.folder, self.wheels, (*self.path, folder))

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` of this environment; only what is installed in it can be imported."""
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.path)), "PYTHONSAFEPATH": "1"}
        return subprocess.run(
            [self.python, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=variables,
            cwd=cwd or self.folder,
            timeout=LIMIT_S,
        )

    def slime(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "slime", *arguments)


def borrow_packages(environment: Path, leave_out: str) -> None:
    """Make this environment's packages visible in another one, except those whose name begins with `leave_out`."""
    borrowed = environment / "borrowed"
    borrowed.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.removeprefix("_editable_impl_").startswith((leave_out, "__pycache__")):
            (borrowed / entry.name).symlink_to(entry)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "borrowed.pth").write_text(f"{borrowed}\n")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Everything that slime needs, but no slime; wheels of slime and its first-party plugins are at hand."""
    scratch = tmp_path_factory.mktemp("scratch")
    venv.create(scratch / "env")
    borrow_packages(scratch / "env", leave_out="slime")
    environment = Environment(scratch / "env", scratch / "wheels")
    environment.build(*FIRST_PARTY)
    return environment


@pytest.fixture(scope="session")
def environment(bare: Environment) -> Environment:
    """slime with its first-party plugins and the third-party reward `closeness`, all installed from wheels."""
    bare.build(HERE / "closeness")
    plugins = ("slime-plugin-glm4", "slime-plugin-math", "slime-plugin-dynamic-sampling", "slime-closeness")
    bare.install("slime-rl", *plugins)
    return bare


@pytest.fixture(scope="session")
def broken_wheels(environment: Environment) -> Sequence[str]:
    """Wheels of every broken plugin; their names without `slime-broken-`."""
    folders = sorted(path for path in (HERE / "broken").iterdir() if (path / "pyproject.toml").exists())
    environment.build(*folders)
    return [folder.name for folder in folders]
