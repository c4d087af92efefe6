"""What the README and the guides show is true: commands exist, the plugin works, links and names lead somewhere."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from slime import command, plugins
from slime.compose.compose import examine
from slime.compose.overrides import SHORT
from slime.config.keys import FOREIGN, open_section, own_keys
from slime.config.passthrough import SET_BY_SLIME, settable
from slime.config.paths import resolve
from slime.config.schema import SlimeConfig
from slime.errors import EXIT_ERROR
from slime.hookspecs import SlimeHooks
from slime.types import Prompt, Sample, Verdict

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
SHOWN_ELSEWHERE = [
    ROOT / "README.md",
    *sorted([*ROOT.glob("plugins/*/README.md"), *ROOT.glob("plugins/*/*/README.md")]),
]
GUIDES = {guide.name: guide.read_text() for guide in sorted((ROOT / "docs").glob("*.md"))}


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text()):
        named = [name for names in re.findall(r"^    make ([\w -]+?)\s+#", page, re.M) for name in names.split()]
        assert {"test", "test-all"} <= set(named) <= set(targets)
    assert "python -m slime +model=glm4-tiny +cluster=local" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("line", re.findall(r"^    slime (.*?)\s+#", README, re.M))
def test_every_command_is_understood(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Verbs that start processes are planned instead: the same words, the same checks."""
    words = shlex.split(line)
    refused = {"eval": "this is neither a run directory", "report": "there are no metrics"}
    refused |= {"watch": "there is no run here", "runs": "there are no runs", "push": "this is neither a run directory"}
    if words[0] in refused:
        monkeypatch.chdir(tmp_path)
        assert command.main(words) == EXIT_ERROR
        named = tmp_path / (words[1] if words[1:] else "runs")
        assert f"{named}: {refused[words[0]]}" in capsys.readouterr().err
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text("model: glm4-tiny\ncluster: local\n")
    if words[0] not in ("plugins", "keys"):
        words = ["plan", *(word for word in words if "=" in word or word.endswith(".yaml"))]
    assert command.main(words) == 0, capsys.readouterr().err


def test_the_reward_plugin_is_the_documented_one_and_scores() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(block.splitlines()) <= 20
    module: dict[str, object] = {}
    exec(block, module)
    hook = module["slime_rewards"]
    assert hasattr(SlimeHooks, hook.__name__)  # type: ignore[attr-defined]
    reward = hook()["brevity"](max_chars=10)  # type: ignore[operator]
    sample = Sample(Prompt("0/1", (), (1,)), 0, response="12345")
    assert reward.score(sample) == Verdict.of(0.5)


@pytest.mark.parametrize("file", SHOWN_ELSEWHERE, ids=lambda file: file.parent.name)
def test_every_link_leads_to_a_file_from_anywhere(file: Path) -> None:
    """A package index shows these files, and knows nothing of the others: links are absolute, whatever names one."""
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.S)
    definitions = dict(re.findall(r"^\[(.+?)\]: (\S+)$", text, re.M))
    targets = [*re.findall(r"\]\(([^)]+)\)", text), *definitions.values()]
    assert all(target.startswith("https://") for target in targets)
    ours = [target.removeprefix(REPOSITORY).partition("#")[0] for target in targets if target.startswith(REPOSITORY)]
    assert [path for path in ours if not (ROOT / re.sub(r"^/(blob|tree|raw)/main/", "", path)).exists()] == []
    named = re.findall(r"\[([\w-]*[./][\w./-]+)\](?![(:])", text)
    assert [name for name in named if name not in definitions] == []


@pytest.mark.parametrize("guide", GUIDES)
def test_every_link_of_a_guide_leads_to_a_file(guide: str) -> None:
    text = re.sub(r"```.*?```", "", GUIDES[guide], flags=re.S)
    headings = [re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in text.splitlines()]
    for target in re.findall(rf"{REPOSITORY}/(?:blob|tree)/main/([^)\s]+)", text):
        assert (ROOT / target).exists(), target
    for path, _, heading in (target.partition("#") for target in re.findall(r"\]\(([^)]+)\)", text)):
        assert path.startswith("https://") or (ROOT / "docs" / path).exists(), path
        assert path or heading in headings, heading


def planned() -> list[str]:
    """Every line of the guides that chooses a model and a cluster, but those whose plugin the guide itself makes."""
    text = "\n".join([*GUIDES.values(), *(file.read_text() for file in SHOWN_ELSEWHERE)]).replace("\\\n", " ")
    lines = re.findall(r"^(?:    |\$ )\S*slime (.*\+model=.*?)(?:\s+#.*)?$", text, re.M)
    own = ("...", "mistral", "task=reverse", "hopeful", "brevity", "bounded", "my_task", "path/to/folder", "podman")
    own += ("name=retry", "my_tools.py", "my_agent.py", "my_env.py", "verifiers://", "hf://", "a40x4")
    own += ("data.path=till.jsonl",)  # tests/test_examples.py
    own += ("my_filters.py", "my_algo.py", "my_tracker.py")
    return sorted({line for line in lines if not any(name in line for name in own)})


@pytest.mark.parametrize("line", planned())
def test_every_run_in_a_guide_has_a_plan(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The lines of guides that make a plugin are run in tests/third_party."""
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2\n")
    (tmp_path / "hosts32").write_text("".join(f"10.0.0.{number}\n" for number in range(1, 33)))
    functions = "def score(response, label): ...\ndef score_group(responses, label): ...\n"
    (tmp_path / "my_file.py").write_text(functions)
    for pairs in ("pairs.jsonl", "held-out.jsonl"):
        (tmp_path / pairs).write_text('{"prompt": "1+2=", "chosen": "3", "rejected": "4"}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "FOLDER").mkdir()
    for split, number in (("train", 1), ("test", 2)):
        (tmp_path / f"FOLDER/{split}.jsonl").write_text(f'{{"prompt": "{number}+2=", "label": "{number + 2}"}}\n')
    demonstration = {"messages": [{"role": "user", "content": "1*2="}, {"role": "assistant", "content": "2"}]}
    (tmp_path / "data/multiplication-python.jsonl").write_text(json.dumps(demonstration))
    (tmp_path / "my-problems.jsonl").write_text('{"prompt": "Add.", "label": ["assert add(3, 4) == 7"]}\n')
    shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), tmp_path / "runs/teacher/export")
    (tmp_path / "runs/teacher/export/model.safetensors").touch()
    scores = shutil.copytree(tmp_path / "runs/teacher/export", tmp_path / "runs/rm/export") / "config.json"
    named = {"architectures": ["Glm4ForSequenceClassification"], "id2label": {"0": "reward"}}
    scores.write_text(json.dumps(json.loads(scores.read_text()) | named))
    monkeypatch.chdir(tmp_path)
    problems = examine([word for word in shlex.split(line) if "=" in word]).problems
    assert [problem for problem in problems if "which is not installed" not in problem.what] == []


@pytest.mark.parametrize("path", re.findall(r"`((?:tests|core|plugins)/[\w/*.-]+)`", README))
def test_every_named_path_exists(path: str) -> None:
    assert list(ROOT.glob(path))


@pytest.mark.parametrize("guide", GUIDES)
def test_every_name_in_a_guide_is_one_of_the_code(guide: str) -> None:
    for name in set(re.findall(r"`(slime\.[\w.]+)`", GUIDES[guide])):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("guide", GUIDES)
def test_every_key_in_a_guide_exists(guide: str) -> None:
    """In a table of other projects' names, those in the last column."""
    plugins.load()  # which add keys
    text = GUIDES[guide]
    if guide == "coming-from.md":
        text = re.sub(r"^(\|[^|]*\|).*(\|[^|]*\|)$", r"\1\2", text, flags=re.M)
    sections = "|".join(field.name for field in dataclasses.fields(SlimeConfig))
    named = set(re.findall(rf"`((?:{sections})\.[\w.]+)(?:=[^`]*)?`", text))
    named = {name for name in named if not name.endswith((".png", ".safetensors", ".json"))}
    assert [key for key in sorted(named) if not (exists(key) or key in SHORT)] == []


def test_the_glossary_is_one_page_of_classes_that_exist() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|.*\| (.*) \|$", GUIDES["glossary.md"], re.M)
    terms = [term for term, _ in rows]
    assert terms == sorted(set(terms))
    assert 25 <= len(terms) <= 40
    named = {name for _, names in rows for name in re.findall(r"`([A-Z]\w+)[`.]", names)}
    code = "\n".join(file.read_text() for file in (ROOT / "core").rglob("*.py"))
    assert named
    assert named - set(re.findall(r"^class (\w+)", code, re.M)) == set()


def exists(key: str) -> bool:
    """Whether it is a key, a section of keys, or a field of somebody else's that a run may set."""
    section, _, field = key.rstrip(".").rpartition(".")
    if section in FOREIGN:
        return field in settable(section) | SET_BY_SLIME[section].keys()
    return open_section(key) is not None or any(f"{name}.".startswith(f"{key.rstrip('.')}.") for name in own_keys())
