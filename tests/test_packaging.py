"""What the metadata of slime and its plugins promises to whoever installs them."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import slime
from slime.compose.groups import scan
from slime.extras import TABLE
from slime.plugins import load
from slime_testing.patience import run_within
from upkeep import distributions

ROOT = Path(__file__).parents[1]
CORE = "slime-rl"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
DISTRIBUTIONS = sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")])
LIBRARIES = [file for file in DISTRIBUTIONS if file.parents[1].name in ("cpu", "libraries")]
"""They know nothing of slime; all others are plugins of it."""
PLUGINS = [file for file in DISTRIBUTIONS if file not in LIBRARIES]
FAMILIES = [file for file in PLUGINS if file.parents[1].name == "models"]


def project(pyproject: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return found


def test_the_name_is_not_the_one_that_somebody_else_has_on_the_package_index() -> None:
    assert project(ROOT / "pyproject.toml")["name"] == CORE


@pytest.mark.parametrize("pyproject", PLUGINS, ids=lambda path: path.parent.name)
def test_a_plugin_depends_on_slime_by_that_name(pyproject: Path) -> None:
    """In the repository and in every example: who asks the index for `slime` gets a stranger's code."""
    prefix, extra = ("slime-plugin-", "[plan]") if pyproject in FAMILIES else ("slime-", "")
    assert project(pyproject)["name"] == f"{prefix}{pyproject.parent.name}"
    assert f"{CORE}{extra}>=0.1,<0.2" in project(pyproject)["dependencies"]


@pytest.mark.parametrize("pyproject", FAMILIES, ids=lambda path: path.parent.name)
def test_a_model_s_page_says_what_trains_it(pyproject: Path) -> None:
    """Its own metadata asks for what plans, so that pip fetches no CUDA for a plan."""
    assert f"{CORE}[gpu]" in (pyproject.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("pyproject", [ROOT / "pyproject.toml", *DISTRIBUTIONS], ids=lambda path: path.parent.name)
def test_metadata_is_complete(pyproject: Path) -> None:
    """What a package index shows of a distribution, the same for all that is the same."""
    from trove_classifiers import classifiers  # comes with the build backend, which a machine that only runs lacks

    ours, core = project(pyproject), project(ROOT / "pyproject.toml")
    assert {"description", "readme", "authors", "keywords"} <= ours.keys()
    for field in ("license", "license-files", "requires-python", "authors"):
        assert ours[field] == core[field], field
    for_gpus = {line for line in core["classifiers"] if line.startswith("Environment :: GPU")}
    assert set(ours["classifiers"]) == set(core["classifiers"]) - (for_gpus if pyproject in LIBRARIES else set())
    assert set(ours["classifiers"]) <= classifiers
    assert all(url.startswith(REPOSITORY) for url in ours["urls"].values())
    packages = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    assert all((pyproject.parent / package / "py.typed").exists() for package in packages)
    assert (pyproject.parent / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("pyproject", PLUGINS, ids=lambda path: path.parent.name)
def test_a_plugin_depends_on_the_plugins_whose_options_it_names(pyproject: Path) -> None:
    """Or `slime plan` of its own recipe, or of a model with its usual task, fails where it is the only plugin."""
    groups, names = scan(load()), [plugin.distribution for plugin in load().installed]
    owner = {
        (group, option): name for name in names for group, options in groups.of(name).items() for option in options
    }
    files = [path.read_text(encoding="utf-8") for path in pyproject.parent.glob("slime_*/**/conf/*/*.yaml")]
    named = {
        choice for text in files for choice in re.findall(r"(?:^|[/ ])(\w+)(?:@_global_)?: ([\w.@-]+)$", text, re.M)
    }
    used = {owner[choice] for choice in named & owner.keys()}
    declared = {Requirement(line).name for line in project(pyproject)["dependencies"]}
    assert used <= {CORE, project(pyproject)["name"], *declared}


def test_the_extra_of_each_kind_of_device_brings_every_distribution_that_a_run_may_take() -> None:
    """All but families and what is for authors; only on a CPU what runs SGLang there."""
    extras = project(ROOT / "pyproject.toml")["optional-dependencies"]
    named = {extra: {Requirement(line).name for line in extras[extra]} for extra in ("plan", "train", "gpu", "cpu")}
    ours = {project(file)["name"] for file in DISTRIBUTIONS if file not in FAMILIES} - {"slime-testing"}
    brought = named["train"] | {Requirement(line).name for line in closure(named["train"] & ours)}
    assert brought >= ours - {"sglang-torch-cpu"}
    assert named["plan"] <= brought
    assert named["gpu"] == {CORE, "sglang"}
    assert named["cpu"] == {CORE, "sglang", "sglang-torch-cpu"}


def closure(names: set[str]) -> set[str]:
    """What these distributions of the repository ask for, and what those ask for."""
    needs = {project(file)["name"]: project(file)["dependencies"] for file in DISTRIBUTIONS}
    asked = {line for name in names for line in needs.get(name, ())}
    further = {Requirement(line).name for line in asked} - names
    return asked | closure(further) if further else asked


@pytest.mark.parametrize("pyproject", LIBRARIES, ids=lambda path: path.parent.name)
def test_a_library_knows_nothing_of_slime(pyproject: Path) -> None:
    """Imports are held by import-linter; here its tests too, and what it asks for and registers."""
    about = project(pyproject)
    assert not [line for line in about["dependencies"] if "slime" in line]
    assert not [group for group in about.get("entry-points", {}) if "slime" in group]
    files = [*pyproject.parent.glob("*/*.py")]
    assert len(files) > 2
    assert [str(file) for file in files if re.search(r"^\s*(from|import) slime", file.read_text(), re.M)] == []


def test_make_builds_a_wheel_of_every_distribution() -> None:
    done = run_within(60, ["make", "--dry-run", "--always-make", "wheels"], cwd=ROOT)
    [builds] = [line for line in done.stdout.splitlines() if "pip wheel" in line]
    folders = {(ROOT / word).resolve() for word in builds.split() if word.startswith("./")}
    assert folders == {ROOT, *(file.parent for file in DISTRIBUTIONS)}
    copied = next(line for line in done.stdout.splitlines() if line.startswith("cp ")).split()[1:-1]
    assert {Path(file).name for file in copied} == {file.name for file in ROOT.glob("requirements/*cpu*")}


def test_every_distribution_has_the_version_of_the_newest_release() -> None:
    """One that lagged behind would be published as what it is not; CONTRIBUTING.md says how a release is made."""
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    above, first, *_ = re.findall(r"^## (.+)$", log, re.MULTILINE)
    version, _, day = first.partition(" - ")
    assert (above, date.fromisoformat(day).isoformat()) == ("Unreleased", day)
    versions = {file.parent.name: project(file)["version"] for file in DISTRIBUTIONS}
    assert {name: other for name, other in versions.items() if other != version} == {}
    assert slime.__version__ == version


def test_core_knows_what_each_distribution_brings_and_nothing_else() -> None:
    """Or somebody who lacks it is told to install something else, or nothing."""
    assert TABLE.read_text(encoding="utf-8") == distributions.to_text(), "run `python upkeep/distributions.py`"
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    kinds = load().registries
    brought = {f"{kind}/{item.name}": item.distribution for kind, all_of in kinds.items() for item in all_of}
    ours = {project(file)["name"] for file in DISTRIBUTIONS}
    assert {name: one for name, one in brought.items() if one in ours} == {
        name: one for one, row in rows.items() for name in row["brings"] if name in brought
    }


def packages(files: list[Path]) -> set[str]:
    """Every package of these distributions, also a second one."""
    return {marker.parent.name for file in files for marker in file.parent.glob("*/py.typed")}


def test_a_distribution_is_held_by_every_rule_or_by_none() -> None:
    """Types, imports, circles, what core may not know: what a list lacks would be checked by nobody. Budgets, floors
    and the whole config go by folders, so nothing under plugins/ is left out (tests/test_house.py, test_floors.py)."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    folders = [str(file.parent.relative_to(ROOT)) for file in DISTRIBUTIONS]
    elsewhere = set(ROOT.glob("plugins/**/pyproject.toml")) - set(DISTRIBUTIONS)
    assert [file for file in elsewhere if "tests" not in file.parts] == []
    assert tools["mypy"]["mypy_path"] == ["core", *sorted(folders)]
    assert {"core/slime", "plugins"} <= set(tools["mypy"]["files"])
    assert set(tools["importlinter"]["root_packages"]) == {"slime"} | packages(DISTRIBUTIONS)
    [straight] = [each for each in tools["importlinter"]["contracts"] if each["type"] == "acyclic_siblings"]
    assert set(straight["ancestors"]) == {"slime"} | packages(DISTRIBUTIONS)
    [unknown] = [each for each in tools["importlinter"]["contracts"] if each["name"] == "core knows no plugin"]
    assert set(unknown["forbidden_modules"]) == packages(PLUGINS)
    [free] = [each for each in tools["importlinter"]["contracts"] if each.get("forbidden_modules") == ["slime"]]
    assert set(free["source_modules"]) == packages(LIBRARIES)


def test_no_example_asks_for_the_name_of_somebody_else() -> None:
    asks = re.compile(r"""["']slime *[<>=~!\[]|pip install (-\S+ )*slime(?![\w-])""")
    files = [
        path for pattern in ("docs/*.md", "*.md", "plugins/**/*.md", "tests/**/*.toml") for path in ROOT.glob(pattern)
    ]
    assert len(files) > 20
    assert [str(path) for path in files if asks.search(path.read_text(encoding="utf-8"))] == []


def pip(*arguments: str | Path) -> str:
    """What this environment's pip prints, typed in the checkout."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    done = run_within(120, command, cwd=ROOT)
    return done.stdout


def test_installing_a_plugin_changes_nothing_else(tmp_path: Path) -> None:
    """pip resolves what the plugin and training need, and finds all of it in what `make setup` made."""
    pip(
        "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", tmp_path, ROOT / "tests/third_party/closeness"
    )
    [wheel] = tmp_path.iterdir()
    report = json.loads(pip("install", "--no-index", "--dry-run", "--report", "-", wheel, f"{CORE}[train]"))
    assert [item["metadata"]["name"] for item in report["install"]] == ["slime-closeness"]


GUIDE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
CONTAINERFILE = (ROOT / "Containerfile").read_text(encoding="utf-8")
INSTALLS = re.compile(r"^(?:\$|RUN) \.venv/bin/pip install (.*requirements/gpu.txt)$", re.MULTILINE)


def listed(extra: str) -> tuple[str, list[Path]]:
    """What `requirements/<extra>.txt` names: slime with its extra, and folders of this repository."""
    lines = (ROOT / f"requirements/{extra}.txt").read_text(encoding="utf-8").splitlines()
    ours, *folders = [line for line in lines if not line.startswith("#")]
    return ours, [ROOT / folder for folder in folders]


def test_the_container_installs_what_a_host_does() -> None:
    [on_a_host], [in_the_container] = INSTALLS.findall(GUIDE), INSTALLS.findall(CONTAINERFILE)
    assert in_the_container == f"--no-cache-dir {on_a_host}"


def test_the_container_has_every_file_that_the_installation_reads() -> None:
    copied = [
        source for line in re.findall(r"^COPY (.+)$", CONTAINERFILE, re.MULTILINE) for source in line.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    core = project(ROOT / "pyproject.toml")
    read = {"pyproject.toml", "core", "plugins", "requirements/gpu.txt", core["readme"], *core["license-files"]}
    assert read == set(copied)


def test_the_gpu_installation_is_slime_with_sglang_and_every_plugin() -> None:
    """What pip makes of the guide's line; that the rest resolves is asked in test_requirements.py. Nothing that runs
    SGLang on a CPU is in it."""
    ours, found = listed("gpu")
    libraries = [ROOT / "plugins/cpu/megatron-core-portable", *ROOT.glob("plugins/libraries/*")]
    for_runs = [file.parent for file in PLUGINS if file.parent.name != "testing"]
    assert found == sorted([*libraries, *for_runs]), "the other is for authors"
    dry = ("--dry-run", "--report", "-", "--no-index", "--no-deps", "--no-build-isolation")
    [asked] = json.loads(pip("install", *dry, ours))["install"]
    assert asked["metadata"]["name"] == CORE
    assert asked["requested_extras"] == ["gpu"]
    assert any(need.startswith("sglang==") for need in asked["metadata"]["requires_dist"] if "'gpu'" in need)


def test_the_planning_installation_needs_nothing_that_trains() -> None:
    """pip would look for a distribution of this repository on the public index if the list lacked it."""
    ours, folders = listed("plan")
    assert ours == ".[plan]"
    projects = [project(folder / "pyproject.toml") for folder in folders]
    needs = {Requirement(need).name for one in projects for need in one.get("dependencies", ())}
    first_party = {project(file)["name"] for file in DISTRIBUTIONS}
    assert needs & first_party <= {one["name"] for one in projects}
    assert not needs & {"torch", "ray", "sglang", "megatron-core", "triton", "transformers"}


def test_a_warning_in_any_package_of_ours_fails_its_test() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    [modules] = [line.split(":::")[1] for line in options["filterwarnings"] if line.startswith("error:::")]
    files = [ROOT / "pyproject.toml", *DISTRIBUTIONS]
    built = [tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["hatch"]["build"] for file in files]
    packages = {Path(path).name for each in built for path in each["targets"]["wheel"]["packages"]}
    assert len(packages) == len(files)
    assert [name for name in sorted(packages) if not re.match(modules, name)] == []
