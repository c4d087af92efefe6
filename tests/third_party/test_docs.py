"""The guides under docs, done as they say: their files make a distribution, their commands are run."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from slime import command
from tests.site import Site

DOCS = Path(__file__).parents[2] / "docs"
FILE = re.compile(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.+)$", re.MULTILINE)
SHORTENED = (
    "sft.num_steps=2", "sft.lr_warmup_steps=0", "run.num_steps=1", "rollout.prompts_per_step=2",
    "rollout.samples_per_prompt=2", "eval.path=null", "reward=closeness", "run.name=it",
)  # fmt: skip


class Guide:
    """A page of docs as what it has its reader write and type."""

    def __init__(self, name: str) -> None:
        text = (DOCS / name).read_text()
        self.files: dict[str, str] = dict(FILE.findall(text))
        self.commands = [shlex.split(command) for command in COMMAND.findall(text)]
        self.indented: list[str] = re.findall(r"^    slime (.+)$", text, re.MULTILINE)
        self.code_blocks = len(re.findall(r"^```\w+$", text, re.MULTILINE))

    def write(self, folder: Path) -> None:
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def of_slime(self, *verb: str) -> list[str]:
        """The arguments of the one `slime` command that begins with `verb`."""
        [found] = [command[1:] for command in self.commands if command[: len(verb) + 1] == ["slime", *verb]]
        return found


REWARD, MODEL = Guide("writing-a-reward-plugin.md"), Guide("writing-a-model-plugin.md")
CHOOSY, OWN = Guide("writing-a-filter-or-buffer.md"), Guide("your-own.md")
OBJECTIVE, GPUS = Guide("writing-an-objective.md"), Guide("gpus.md")


@pytest.mark.parametrize(
    "guide",
    [REWARD, MODEL, CHOOSY, OWN, OBJECTIVE, GPUS],
    ids=["reward", "model", "filter and buffer", "own", "objective", "gpus"],
)
def test_every_code_block_is_a_file_or_a_command(guide: Guide) -> None:
    blocks_of_commands = guide.code_blocks - len(guide.files)
    assert 0 < blocks_of_commands <= len(guide.commands)


def test_the_reward_plugin_has_twenty_lines() -> None:
    code = REWARD.files["slime_brevity/__init__.py"]
    ast.parse(code)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 20, f"{len(lines)} lines"


def test_a_cluster_with_a_gpu_of_ones_own_is_planned(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.add_project(GPUS.files)
    assert command.main(GPUS.of_slime("plan", "--fit")) == 0, capsys.readouterr().err
    assert "layouts, by estimate for a40\n" in capsys.readouterr().out


def test_the_filter_and_buffer_guide_works_as_written(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Laid out as pip would; that pip does so is shown by the reward guide, whose package is made alike."""
    site.add_project(CHOOSY.files)
    assert command.main(CHOOSY.of_slime("plan")) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert re.search(r"^filter +hopeful \(slime-choosy 0.1.0\)$", shown, re.MULTILINE)
    assert re.search(r"^filter.then.brief +brief \(slime-choosy 0.1.0\): max_tokens=10$", shown, re.MULTILINE)
    tests = runpy.run_path(str(site.folder / "tests/test_choosy.py"))
    tests["test_filter"]()
    tests["test_shaping"]()
    tests["test_buffer"]()


@pytest.mark.parametrize("guide", [CHOOSY, OBJECTIVE], ids=["filter and buffer", "objective"])
def test_files_of_the_guides_are_planned(
    guide: Guide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    [words] = map(shlex.split, guide.indented)
    assert command.main(words) == 0, capsys.readouterr().err


@pytest.mark.slow  # trains in seven ways
def test_the_objective_guide_works_as_written(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    code = OBJECTIVE.files["slime_bounded/__init__.py"].splitlines()
    assert len([line for line in code if line.strip()]) <= 40
    site.add_project(OBJECTIVE.files)
    assert command.main([*OBJECTIVE.of_slime("plan"), "--all"]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert re.search(r"^bounded +\d+ steps of", shown, re.MULTILINE)
    assert re.search(r'algo\.options +{"bound": 0\.5}', shown)
    assert "algo.clip_low" not in shown, "what it does not read"
    runpy.run_path(str(site.folder / "tests/test_bounded.py"))["test_objective"]()


def test_the_page_about_an_own_task_works_as_written(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the plan, which reads the first rows: a whole run with the arithmetic task is the demo's."""
    monkeypatch.chdir(site.folder)
    site.add_project(OWN.files)
    [[_, script]] = [command for command in OWN.commands if command[0] == "python"]
    runpy.run_path(str(site.folder / script))
    (site.folder / "FOLDER").mkdir()
    for split, first in (("train", 1), ("test", 40)):
        rows = [json.dumps({"prompt": f"{x}+{x}=", "label": str(2 * x)}) for x in range(first, first + 32)]
        (site.folder / f"FOLDER/{split}.jsonl").write_text("\n".join(rows))
    of_pages = [line for line in OWN.indented if "hf://" not in line]  # nobody answers here
    for words in (OWN.of_slime("plan"), *map(shlex.split, of_pages)):
        assert command.main(words) == 0, capsys.readouterr().err
        told = capsys.readouterr().err
        assert not told or re.search(r"before it can run: model\.path, folder \S+ is missing.* 'models/mine'", told)
    runpy.run_path(str(site.folder / "tests/test_reverse.py"))["test_reward"]()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_reward_guide_works_as_written(environment: Any, tmp_path: Path) -> None:
    REWARD.write(tmp_path / "project")
    [(_, *install)] = [command for command in REWARD.commands if command[0] == "pip"]
    assert environment.would_change(*install, cwd=tmp_path / "project") == ["slime-brevity"]
    environment.build(tmp_path / "project")
    installed = environment.beside(tmp_path / "site", "slime-brevity")
    shown = [installed.slime(*REWARD.of_slime(verb)) for verb in ("plugins", "plan")]
    assert [result.returncode for result in shown] == [0, 0], [result.stderr for result in shown]
    assert all("slime-brevity 0.1.0" in result.stdout for result in shown)
    tested = installed.run("-m", "pytest", "-c", "/dev/null", tmp_path / "project/tests")
    assert "2 passed" in tested.stdout, tested.stdout


@pytest.fixture(scope="module")
def family(environment: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The family of the model guide, installed from its wheel, and the folder where it was written."""
    folder = tmp_path_factory.mktemp("family")
    project = folder / "project"
    MODEL.write(project)
    [[_, script]] = [command for command in MODEL.commands if command[0] == "python"]
    made = environment.run(script, cwd=project)
    assert made.returncode == 0, made.stderr
    environment.build(project)
    return environment.beside(folder / "site", "slime-mistral"), project


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_family_of_the_guide_is_found_and_planned(family: tuple[Any, Path]) -> None:
    shown = [family[0].slime(*MODEL.of_slime(verb)) for verb in ("plugins", "plan")]
    assert [result.returncode for result in shown] == [0, 0], [result.stderr for result in shown]
    assert "slime-mistral 0.1.0" in shown[0].stdout
    assert "mistral-tiny" in shown[1].stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_family_of_the_guide_passes_its_tests(family: tuple[Any, Path]) -> None:
    """Without the contract's multi-rank layouts: its blocks are those of the families here, which are tried in them."""
    installed, project = family
    assert ["pytest"] in MODEL.commands
    tested = installed.run("-m", "pytest", "-c", "/dev/null", "-k", "not ranks", "tests", cwd=project)
    assert tested.returncode == 0, tested.stdout
    assert " passed, 2 deselected" in tested.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_family_of_the_guide_trains_with_a_third_party_reward(family: tuple[Any, Path], tmp_path: Path) -> None:
    """A whole run: slime, its family and its reward are three wheels, and nothing is imported from this checkout."""
    installed, _ = family
    command = MODEL.of_slime("+model=mistral-tiny")
    done = installed.slime(*command, *SHORTENED, f"run.dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    used = json.loads((tmp_path / "it/plugins.json").read_text())["used"]
    assert (used["model"]["distribution"], used["reward"]["distribution"]) == ("slime-mistral", "slime-closeness")
    rows = [json.loads(line) for line in (tmp_path / "it/metrics.jsonl").read_text().splitlines()]
    [step] = [row for row in rows if row["stage"] == "rl" and "train/loss" in row]
    assert 0 <= step["rollout/reward_mean"] <= 1
    assert step["rollout/reward_error"] == 0
    assert step["train/logprob_diff_max"] < 1e-4  # fp32 on both sides: the order of additions
