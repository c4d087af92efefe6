from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime.types import Verdict
from slime_rewards.general.function import FunctionReward
from slime_testing.plugins import GroupCase, RewardCase, check_reward, sample

RUN = ["+model=glm4-tiny", "+cluster=local"]
PAGE = Path(__file__).parents[4] / "docs/rewards.md"
FILE = """
import helper
from slime.types import Verdict

def score(response, label, scale=1.0):
    return scale * (helper.clean(response) == label)

def whole(sample):
    return Verdict.of(len(sample.response), label=float(sample.prompt.label))

def shortest(responses, label):
    right = [len(each) for each in responses if label in each]
    return [float(label in each and len(each) == min(right)) for each in responses]

def count(samples):
    return len(samples)

async def compared(samples, metadata, scale=1.0):
    return [Verdict.of(scale * each.index, rows=metadata["rows"]) for each in samples]

def mixed(response, responses):
    return 1.0

async def later(response, metadata):
    return response in metadata["wanted"]

def nothing(response):
    return None

def unknown(completion, answer):
    return 1.0

def breaks(response):
    raise ValueError("no such row")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text("def clean(text):\n    return text.strip()\n")
    path = tmp_path / "my_file.py"
    path.write_text(FILE)
    return path


def test_a_function_of_a_file_is_a_reward(file: Path) -> None:
    cases = [RewardCase(" 5 ", "5", 1.0), RewardCase("6", "5", 0.0)]
    check_reward("function", cases, options={"path": f"{file}:score"})
    options = {"path": f"{file}:score", "arguments": {"scale": 0.5}}
    check_reward("function", [RewardCase("5", "5", 0.5)], options=options)
    check_reward("function", [RewardCase("abc", 2, Verdict.of(3.0, label=2.0))], options={"path": f"{file}:whole"})
    check_reward("function", [RewardCase("a", None, 1.0, {"wanted": ["a"]})], options={"path": f"{file}:later"})


def test_a_function_that_names_responses_or_samples_judges_a_group(file: Path) -> None:
    cases = [GroupCase(["so 5", "5", "6"], "5", [0.0, 1.0, 0.0]), GroupCase(["7"], "7", [1.0])]
    check_reward("function", cases, options={"path": f"{file}:shortest"})
    expected = [Verdict.of(0.0, rows=3.0), Verdict.of(0.5, rows=3.0)]
    options = {"path": f"{file}:compared", "arguments": {"scale": 0.5}}
    check_reward("function", [GroupCase(["a", "b"], None, expected, {"rows": 3})], options=options)
    said = Verdict.error(f"{file}:count returned 2, not a list of 2, one for each response")
    check_reward("function", [GroupCase(["a", "b"], None, [said, said])], options={"path": f"{file}:count"})


def test_a_function_of_a_module_is_a_reward(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    assert FunctionReward("my_file:score").score(sample("5", "5")).value == 1.0
    with pytest.raises(SlimeError, match="there is no module 'no_such_module'"):
        FunctionReward("no_such_module:score")


def test_the_page_s_functions_are_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of docs/rewards.md, and its commands that name them."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "my_file.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    check_reward("function", [RewardCase("2+3=5\n", "5", 1.0), RewardCase("6", "5", 0.0)], {"path": "my_file.py:score"})
    group = GroupCase(["it is 5", "5", "6"], "5", [1 / 7, 1.0, 0.0])
    check_reward("function", [group, GroupCase(["6"], "5", [0.0])], {"path": "my_file.py:score_group"})
    lines = re.findall(r"^    slime (\+model.*my_file.*)$", PAGE.read_text(), re.M)
    assert (len(lines), len(blocks)) == (3, 2)
    for line in lines:
        assert examine(shlex.split(line)).problems == []


@pytest.mark.parametrize("fault", ["import no_such_library", "raise SystemExit('no_such_library')"])
def test_a_file_that_does_not_import_is_named_with_its_line(tmp_path: Path, fault: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import re\n{fault}\ndef score(response):\n    return 1.0\n")
    with pytest.raises(SlimeError) as refused:
        FunctionReward(f"{file}:score")
    said = str(refused.value)
    assert said.startswith(f"reward.path: {file} cannot be imported at line 2: ")
    assert re.search(r"Error: No module named 'no_such_library'\. |SystemExit: no_such_library\. ", said)
    assert said.endswith(" Correct it, or install what it imports.")


def test_what_a_function_returns_or_raises_is_told(file: Path) -> None:
    verdict = FunctionReward(f"{file}:nothing").score(sample(""))
    assert verdict == Verdict.error(f"{file}:nothing returned None, neither a number nor a Verdict")
    with pytest.raises(ValueError, match="no such row"):  # the worker makes a verdict of it
        FunctionReward(f"{file}:breaks").score(sample(""))


@pytest.mark.parametrize(
    ("returned", "verdict"),
    [
        ("{'score': 0.5, 'acc': True, 'pred': 'x'}", Verdict.of(0.5, acc=1.0)),
        ("numpy.float32(0.5)", Verdict.of(0.5)),
        ("numpy.array(0.5)", Verdict.of(0.5)),
        ("numpy.array([1.0])", "array([1.]), neither a number nor a Verdict"),
        ("[1.0]", "[1.0], neither a number nor a Verdict"),
        ("{'reward': 1}", "{'reward': 1}, neither a number nor a Verdict; of an object the key 'score' is the value"),
        ("{'score': [1]}", "{'score': [1]}, neither a number nor a Verdict; of an object the key 'score' is the value"),
    ],
)
def test_what_other_frameworks_functions_return(tmp_path: Path, returned: str, verdict: Verdict | str) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(f"import numpy\ndef score(response):\n    return {returned}\n")
    said = FunctionReward(f"{path}:score").score(sample(""))
    assert said == (Verdict.error(f"{path}:score returned {verdict}") if isinstance(verdict, str) else verdict)


@pytest.mark.parametrize(
    ("path", "arguments", "words"),
    [
        ("my_file.py:scor", [], r"^reward.path: there is no function 'scor' in .*my_file.py. Did you mean 'score'\?$"),
        ("my_file.py:SCORE", [], r"there is no function 'SCORE'"),
        ("my_fil.py:score", [], r"there is no file .*my_fil.py"),
        ("my_file.py", [], r"'my_file.py' names no function. Write FILE.py:FUNCTION"),
        (
            "my_file.py:unknown",
            [],
            r"takes 'completion', which nobody gives it. It gets what it names of sample, resp",
        ),
        ("my_file.py:mixed", [], r"takes 'response' of one sample, and all samples of a prompt. Leave out response"),
        ("my_file.py:score", ["scal=2"], r"takes no 'scal'. Did you mean 'scale'"),
    ],
)
def test_a_plan_tells_what_is_wrong_without_running_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, path: str, arguments: list[str], words: str
) -> None:
    file.write_text(FILE + "SCORE = 1\nraise SystemExit('this file was run')\n")
    monkeypatch.chdir(file.parent)
    given = [f"reward.options.arguments.{each}" for each in arguments]
    with pytest.raises(SlimeError, match=words):
        compose([*RUN, f"reward.path={path}", *given])


def test_a_name_is_what_it_was_given_last(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text("late = None\ndef late(response): return 1\ndef gone(response): return 1\ngone = [1]\nmade = abs\n")
    for name in ("late", "made"):  # what the second is nobody knows before the file is run
        assert compose([*RUN, f"reward.path=my_file.py:{name}"]).reward.name == "function"
    with pytest.raises(SlimeError, match="there is no function 'gone'"):
        compose([*RUN, "reward.path=my_file.py:gone"])


def test_reward_path_chooses_the_reward_whatever_the_task_says(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    cfg = compose([*RUN, "reward.path=my_file.py:score"])
    assert (cfg.reward.name, cfg.reward.options["path"]) == ("function", "my_file.py:score")
    with pytest.raises(SlimeError, match=r"reward=math takes no function.*Leave out reward=math"):
        compose([*RUN, "reward=math", "reward.path=my_file.py:score"])


def test_the_file_is_recorded_so_that_another_one_does_not_go_on(file: Path) -> None:
    keys = [*RUN, f"reward.path={file}:score"]
    recorded = compose(keys).reward.options["sha256"]
    file.write_text(FILE.replace("==", "!="))
    assert compose(keys).reward.options["sha256"] != recorded
    [problem] = examine([*keys, f"reward.options.sha256={json.dumps(recorded)}"]).problems
    assert "my_file.py was changed" in problem.what
    with pytest.raises(SlimeError, match="was changed"):
        FunctionReward(f"{file}:score", sha256=recorded)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("import no_such_library", "line 2: ModuleNotFoundError: No module named 'no_such_library'"),
        ("import json, no_such_library.part as other", "No module named 'no_such_library'"),
        ("from no_such_library import *", "No module named 'no_such_library'"),
        ("from . import besid", "line 2: 'from . import' finds no such file beside it. Did you mean 'beside'?"),
        ("from .other import x", "'from .other import' finds no such file beside it"),
        (
            "import slime.rollout.base_types",
            "No module named 'slime.rollout.base_types'. THUDM/slime is another project",
        ),
        ("from ..up.beside import x", "'from ..up.beside import' needs a package around it"),
        ("import json, os.path, numpy", ""),
        ("import beside, package.part", ""),
        ("from beside import x", ""),
        ("from .beside import x", ""),
        ("from . import beside", ""),
        ("import slime.types", ""),
        ("try:\n    import no_such_library\nexcept ImportError:\n    pass", ""),
        ("if False:\n    import no_such_library", ""),
        ("def late(response):\n    import no_such_library", ""),
    ],
)
def test_a_plan_looks_at_what_a_file_imports(
    line: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    for name in ("beside.py", "package/part.py"):
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "my_own.py").write_text(f"import re\n{line}\ndef score(response):\n    return 1.0\n")
    run = [*RUN, "reward.path=my_own.py:score"]
    if not fault:
        compose(run)
        return
    with pytest.raises(SlimeError, match=re.escape(fault)):
        compose(run)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("nosuchmodule:score", "there is no module 'nosuchmodule'. Write FILE.py:FUNCTION, or install the module."),
        ("my_own:score", "there is no module 'my_own'. Write my_own.py:FUNCTION for the file in this folder"),
        ("json.decode:score", "there is no module 'json.decode': 'decode' is not there. Did you mean 'decoder'?"),
        ("json.decoder:scanstrin", "there is no function 'scanstrin' in json.decoder"),
        ("json:load", "takes 'fp', which nobody gives it"),
        ("math:sqrt", ""),
        ("transformers:AutoTokenizer", ""),
    ],
)
def test_a_plan_looks_for_a_module(path: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in sys.path if each and Path(each) != tmp_path])
    (tmp_path / "my_own.py").write_text("def score(response):\n    return 1.0\n")
    if not fault:
        compose([*RUN, f"reward.path={path}"])
        return
    with pytest.raises(SlimeError, match=re.escape(fault)):
        compose([*RUN, f"reward.path={path}"])
