"""A scratch environment with slime's dependencies but no slime, and pip to install built wheels into it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from slime_testing.patience import run_within

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIRST_PARTY = [
    ROOT,
    *(file.parent for place in ("*", "*/*") for file in sorted(ROOT.glob(f"plugins/{place}/pyproject.toml"))),
]
LIBRARIES = [path for path in FIRST_PARTY if path.parent.name in ("cpu", "libraries")]
"""They know nothing of slime, and their packages do not begin with its name."""
LIMIT_S = 300
BUILD = """
import os, sys
from hatchling.build import build_wheel
for project in sys.argv[2:]:
    os.chdir(project)
    build_wheel(sys.argv[1])
"""
"""What `pip wheel` has the build backend do, in one process for all."""
LAPTOP_RUN = (
    "slime-rl",
    "batch-invariant",
    "guarded-workers",
    "megatron-core-portable",
    "sglang-torch-cpu",
    "stack-dumps",
    "vocabulary-logprobs",
    "weight-buckets",
    "slime-agents",
    "slime-algorithms",
    "slime-cluster",
    "slime-filters",
    "slime-megatron",
    "slime-observers",
    "slime-rewards",
    "slime-sglang",
    "slime-tools",
    "slime-plugin-glm4",
)
"""What the laptop run takes of this repository: core, what `slime-rl[cpu]` brings, and the model."""
collect_ignore = [
    "closeness",
    "confidence",
    "int8",
    "lengths",
    "live",
    "mailbox",
    "median",
    "plain",
    "retry",
    "running",
    "weighted",
    "wreinforce",
    "beside",
    "broken",
    "families",
]  # their tests run where they are installed


def pip(*arguments: str | Path, cwd: Path | None = None) -> str:
    """What pip of this environment prints. It takes what stands on PYTHONPATH, as of a checkout that is not installed,
    for a part of any environment."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return run_within(LIMIT_S, command, cwd=cwd, env=variables).stdout


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

    def build_quickly(self, *projects: Path) -> None:
        """The same wheels by `BUILD`."""
        run_within(LIMIT_S, [sys.executable, "-c", BUILD, self.wheels, *projects])

    def install(self, *names: str) -> None:
        """`pip install` by name, without network: what they depend on is there, or among the wheels."""
        pip("--python", self.python, "install", "--no-index", "--find-links", self.wheels, *names)

    def would_change(self, *arguments: str, cwd: Path) -> list[str]:
        """The distributions that `pip ARGUMENTS`, an installation, would install or replace; it changes nothing."""
        dry = ("--dry-run", "--report", "-", "--no-index", "--no-build-isolation")
        report = json.loads(pip("--python", self.python, *arguments, *dry, cwd=cwd))
        return [item["metadata"]["name"] for item in report["install"]]

    def beside(self, folder: Path, *names: str) -> Environment:
        """This environment with more distributions, which lie in `folder` and leave the environment unchanged."""
        pip("install", "--no-index", "--find-links", self.wheels, "--no-deps", "--target", folder, *names)
        return Environment(self.folder, self.wheels, (*self.path, folder))

    def unpacked(self, folder: Path, name: str) -> Environment:
        """The same, where how pip does it is not the question."""
        [wheel] = self.wheels.glob(f"{name.replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(folder)
        return Environment(self.folder, self.wheels, (*self.path, folder))

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """`python ARGUMENTS` of this environment; only what is installed in it can be imported."""
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self.path)), "PYTHONSAFEPATH": "1"}
        return run_within(
            LIMIT_S, [self.python, *map(str, arguments)], env=variables, cwd=cwd or self.folder, check=False
        )

    def slime(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "slime", *arguments)


HERE_INSTALLED = Path(sysconfig.get_path("purelib"))


def all_but(*prefixes: str) -> list[str]:
    """What lies in this environment, except what begins with one of `prefixes`."""
    names = [entry.name for entry in HERE_INSTALLED.iterdir()]
    return [name for name in names if not name.removeprefix("_editable_impl_").startswith((*prefixes, "__pycache__"))]


def needed_by(*distributions: str) -> list[str]:
    """What lies in this environment because these, without their extras, ask for it."""
    found: set[str] = set()
    asked = [*distributions]
    while asked:
        for need in map(Requirement, metadata.requires(asked.pop()) or ()):
            is_new = need.name not in {*found, *distributions}
            if is_new and (need.marker is None or need.marker.evaluate({"extra": ""})):
                found.add(need.name)
                asked.append(need.name)
    files = [file for name in found for file in metadata.files(name) or ()]
    return sorted({file.parts[0] for file in files} - {"..", "__pycache__"})


def ours(*requirements: str) -> dict[str, Path]:
    """The distributions of this repository that pip installs for these requirements, and where their projects lie."""
    projects = {_name(path): path for path in FIRST_PARTY}
    wanted, seen = [*requirements], set[str]()
    while wanted:
        if (line := wanted.pop()) in seen or (need := Requirement(line)).name not in projects:
            continue
        seen.add(line)
        for asked in metadata.requires(need.name) or ():
            marker = Requirement(asked).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *need.extras)):
                wanted.append(asked)
    names = {Requirement(line).name for line in seen}
    return {name: projects[name] for name in sorted(names)}


def _name(project: Path) -> str:
    if project == ROOT:
        return "slime-rl"
    if project in LIBRARIES:
        return project.name
    return f"slime-plugin-{project.name}" if project.parent.name == "models" else f"slime-{project.name}"


def borrow_packages(environment: Path, names: Sequence[str]) -> None:
    """Make entries of this environment's packages visible in another one."""
    borrowed = environment / "borrowed"
    borrowed.mkdir()
    for name in names:
        (borrowed / name).symlink_to(HERE_INSTALLED / name)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (site / "borrowed.pth").write_text(f"{borrowed}\n")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Everything that slime needs, but no slime; wheels of slime and its first-party plugins are at hand."""
    scratch = tmp_path_factory.mktemp("scratch")
    venv.create(scratch / "env")
    borrow_packages(scratch / "env", all_but("slime"))
    environment = Environment(scratch / "env", scratch / "wheels")
    environment.wheels.mkdir()
    environment.build_quickly(*FIRST_PARTY)
    return environment


@pytest.fixture(scope="session")
def planning(bare: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels of slime and GLM-5 beside what they ask for."""
    folder = tmp_path_factory.mktemp("planning") / "env"
    venv.create(folder)
    borrow_packages(folder, needed_by("slime-rl", "slime-rewards", "slime-observers", "guarded-workers"))
    environment = Environment(folder, bare.wheels)
    environment.install("slime-plugin-glm5")
    return environment


@pytest.fixture(scope="session")
def smallest(bare: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheels of `LAPTOP_RUN` and nothing else of this repository."""
    folder = tmp_path_factory.mktemp("smallest") / "env"
    venv.create(folder)
    borrow_packages(folder, all_but("slime", *(path.name.replace("-", "_") for path in LIBRARIES)))
    environment = Environment(folder, bare.wheels)
    environment.install("--no-deps", *LAPTOP_RUN)  # what makes SGLang's metadata whole are CUDA packages
    return environment


@pytest.fixture(scope="session")
def environment(bare: Environment) -> Environment:
    """slime with its first-party plugins and the third-party examples, all installed from wheels."""
    examples = sorted({*collect_ignore} - {"broken", "families"})
    bare.build_quickly(*(HERE / example for example in examples))
    plugins = [name for name in LAPTOP_RUN if name.startswith("slime-")]
    bare.install(*plugins, "slime-testing", *(f"slime-{example}" for example in examples))
    # pip takes them for installed, because their metadata is borrowed with that of all others.
    bare.install("--no-deps", "--ignore-installed", *(path.name for path in LIBRARIES))
    return bare


@pytest.fixture(scope="session")
def broken_wheels(environment: Environment) -> Sequence[str]:
    """Wheels of every broken plugin; their names without `slime-broken-`."""
    folders = sorted(path for path in (HERE / "broken").iterdir() if (path / "pyproject.toml").exists())
    environment.build_quickly(*folders)
    return [folder.name for folder in folders]
