"""Python in the answer against tests: every form of label, and programs that cheat."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from slime.__main__ import main
from slime.compose.compose import compose, examine
from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.service import RewardService
from slime.thinking import divided
from slime.types import Prompt, Sample, Verdict, VerdictKind
from slime_rewards.code import sandbox
from slime_rewards.code.labels import cases_of
from slime_rewards.code.programs import program_of
from slime_rewards.code.reward import CodeReward
from slime_testing.plugins import RewardCase, check_reward

ADD = {"inputs": ["3 4", "1 1"], "outputs": ["7", "2\n"]}
CALLED = {"function": "add", "inputs": [[3, 4], [1, 1]], "outputs": [7, 2]}
ASSERTED = ["assert add(3, 4) == 7", "assert add([1], [1]) == [1, 1]"]
READS = "a, b = map(int, input().split())\nprint(a + b)"
ADDS = "def add(a, b):\n    return a + b"

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


def judged(value: float, passed: float, *, late: bool = False, crashed: bool = False) -> Verdict:
    return Verdict.of(value, tests_passed=passed, no_program=0.0, crashed=float(crashed), out_of_time=float(late))


NO_PROGRAM = Verdict.of(0.0, tests_passed=0.0, no_program=1.0, crashed=0.0, out_of_time=0.0)


def fenced(code: str) -> str:
    return f"Let me think.\n```python\n{code}\n```\n"


def verdict(code: str, label, **options) -> Verdict:
    """Asked for again where the machine, which runs other tests beside this one, was too busy for the program."""
    for _ in range(5):
        found = CodeReward(**options).score(Sample(Prompt("0/0", (), (), label), 0, response=fenced(code)))
        if "the machine is too busy" not in found.reason:
            break
    return found


@pytest.mark.parametrize(
    ("code", "label"), [(READS, ADD), (ADDS, CALLED), (ADDS, ASSERTED), (ADDS, json.dumps(CALLED))]
)
def test_a_right_program_passes(code, label):
    assert verdict(code, label) == judged(1.0, 1.0)


def test_partial_credit_is_asked_for():
    assert verdict("print(7)", ADD) == judged(0.0, 0.5)
    assert verdict("print(7)", ADD, partial=True) == judged(0.5, 0.5)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "import os; os._exit(97)",
        "raise SystemExit(97)",
        "import os; os.kill(os.getpid(), 19)",
        "class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()",
        "def add(a, b): return 7.1",
        "def add(a, b): raise KeyboardInterrupt",
        "def add(a, b): print(a + b)",
        "def add(a, b): return True",
        "import inspect\ndef add(a, b):\n    return [f.frame.f_locals for f in inspect.stack()]",
        "def add(a, b):\n    while True: pass",
        "def add(a, b):\n    return '(' * 10**5",
        "def add(a, b): return [[]] * 10**6",
        "import builtins; builtins.repr = lambda x: '7 or 2'\ndef add(a, b): return 0",
        "class Odd:\n    def __repr__(self): return '{[]: 1}'\ndef add(a, b): return Odd()",
        "class Slow:\n    def __repr__(self):\n"
        "        return '{' + ','.join(str(k * (2**61 - 1)) for k in range(20000)) + '}'\ndef add(a, b): return Slow()",
        "import os\ndef add(a, b): os.write(1, b'[' + b'[],' * 349000 + b']'); os._exit(0)",
        "x = (",
        "\0",
        "\ud800",
        "",
    ],
)
@pytest.mark.parametrize("label", [CALLED, ASSERTED])
def test_a_program_that_cheats_or_breaks_passes_nothing(code, label):
    assert verdict(code, label, cpu_s=1).value == 0


@pytest.mark.parametrize(
    ("code", "partial", "passed"),
    [("time.sleep(1e6)", False, 0.0), ("time.sleep(1e6)", True, 0.0), ("int(input()) and time.sleep(1e6)", True, 0.05)],
    ids=["all", "partial", "some"],
)
def test_a_program_that_does_not_end_is_a_0_by_the_reward_s_own_deadline(code, partial, passed):
    """Not a verdict without a value, which a policy could like better than a 0."""
    label = {"inputs": [*map(str, range(20))], "outputs": [""] * 20}
    cfg = RewardConfig(name="code", options={"partial": partial, "cpu_s": 5}, num_workers=1, timeout_s=5)
    answer = Sample(Prompt("0/0", (), (), label), 0, response=fenced(f"import time\n{code}"))
    with RewardService(cfg) as service:
        assert asyncio.run(service.score(answer)) == judged(passed, passed, late=True)


def test_a_number_that_no_float_reaches_is_wrong():
    label = {"function": "f", "inputs": [[]], "outputs": [1.5]}
    assert verdict("def f(): return 10**400", label) == judged(0.0, 0.0)
    assert verdict("def f(): return 1.5", label) == judged(1.0, 1.0)


def said(response: str, **keywords) -> str | None:
    found = program_of(divided(response)[1], **keywords)
    return found and found.code.strip()


def test_the_last_block_behind_the_thinking_is_run():
    assert said("```python\nf(1)\n```</think>```py\nf(2)\n``` and ```\nf(3)\n```") == "f(3)"
    assert said("```python\nf(1)\n```</think>no") is None
    assert said("<think>```python\nf(1)\n```") is None
    assert said("print(1)") == "print(1)"


def test_what_was_cut_off_is_no_program():
    whole, begun = f"```python\n{ADDS}\n```\n", "Better:\n```python\ndef add(a, b):\n    return b"
    assert said(whole + begun, names=["add"]) == "def add(a, b):\n    return b"
    assert said(whole + begun, names=["add"], is_cut=True) == ADDS
    assert said(begun, is_cut=True) is None
    assert said(ADDS, is_cut=True) is None


def test_metrics_tell_what_a_wrong_answer_is():
    assert verdict("def add(a, b): return 0", CALLED) == judged(0.0, 0.0)
    assert verdict("def add(a, b): return 1 / 0", CALLED) == judged(0.0, 0.0, crashed=True)
    assert CodeReward().score(Sample(Prompt("0/0", (), (), CALLED), 0, response="It is 7.")) == NO_PROGRAM


@pytest.mark.parametrize(
    "label", ["", "7", [], {"inputs": ["1"], "outputs": []}, ["assert add(1, 1) > 1"], ["import os"],
              {"function": "os.system", "inputs": [["ls"]], "outputs": [0]}, None]
)  # fmt: skip
def test_a_label_without_tests_is_refused_and_never_a_0(label):
    found = verdict(ADDS, label)
    assert found.kind is VerdictKind.INVALID
    assert found.reason.startswith("row 0/0: the label has no tests: ")


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ({"inputs": [], "outputs": [], "fn_nam": "f"}, "the key 'fn_nam', which is not known. Did you mean 'fn_name'?"),
        ({"inputs": [[3]], "outputs": [3]}, "an input is list [3], no text: name the function that takes it (fn_name)"),
        ({"private_test_cases": "eJx" + "rTy0k" * 20}, "packed, and unpacking them could run code"),
        ({"inputs": ["1"], "outputs": ["1"], "language": "cpp"}, "its language is 'cpp'"),
        ({"inputs": ["1"], "outputs": []}, "it has 1 inputs and 0 outputs"),
        (["assert add(1, 1) > 1"], "'assert add(1, 1) > 1' is not of the form: assert f(...) == value"),
    ],
)
def test_a_label_that_is_refused_says_what_of_it(label, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        cases_of(label)


def pairs() -> list[list]:
    """Of each kind a few, right and wrong."""
    file, kept = Path(__file__).with_name("data") / "programs.jsonl", {}
    for line in file.read_text(encoding="utf-8").splitlines():
        kind, _, _, _, right = pair = json.loads(line)
        kept.setdefault((kind, right), []).append(pair)
    return [pair for of_kind in kept.values() for pair in of_kind[:: max(1, len(of_kind) // 2)]]


@pytest.mark.parametrize(("kind", "name", "label", "response", "right"), pairs())
def test_programs_as_they_are_written(kind, name, label, response, right):
    """All of them are tried by `benchmarks/programs.py`."""
    for _ in range(5):
        found = CodeReward().score(Sample(Prompt("0/0", (), (), label), 0, response=response))
        if "the machine is too busy" not in found.reason:
            break
    value = found.kind.value if found.value is None else "none" if found.parts["no_program"] else found.value
    assert value == right, f"{kind}, {name}: {found.reason}"


def test_values_are_compared_as_json_knows_them():
    for value, wanted in [("(1, 2)", [1, 2]), ("{'a': (1,)}", {"a": [1]}), ("0.1 + 0.2", 0.3), ("2.0", 2)]:
        assert verdict(f"def f(): return {value}", {"function": "f", "inputs": [[]], "outputs": [wanted]}).value == 1
    assert len(cases_of(ADD)) == 2


def test_where_nothing_confines_the_run_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has no Landlock")
    data = Path(__file__).with_name("data") / "problems.jsonl"
    words = ["+model=glm4-tiny", "+cluster=local", "reward.name=code", f"data.path={data}", "eval.path=null"]
    with pytest.raises(SlimeError, match="the sandbox cannot be had here: the kernel has no Landlock"):
        compose(words)
    assert verdict(ADDS, CALLED).kind is VerdictKind.ERROR
    assert compose([*words, "reward.options.unconfined=true"]).reward.name == "code"


def test_contract():
    check_reward("code", [RewardCase(fenced(ADDS), CALLED, judged(1.0, 1.0)),
                          RewardCase("no code", CALLED, NO_PROGRAM)])  # fmt: skip


@pytest.mark.slow
def test_check_reward_finds_it_fit(tmp_path, capsys):
    labels = [json.dumps({"inputs": [""], "outputs": [str(number)]}) for number in (37, 58)]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"prompt": "Print it.", "label": label}) + "\n" for label in labels))
    template = fenced("import json\nprint(json.loads('''{label}''')['outputs'][0])")
    assert main(["check-reward", "code", str(file), "--template", template]) == 0, capsys.readouterr().out


def rows(folder, labels, **columns):
    file = folder / "problems.jsonl"
    made = [{"prompt": "Add.", "label": label, **{key: each[number] for key, each in columns.items()}}
            for number, label in enumerate(labels)]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(file)


def test_a_plan_looks_at_the_labels(tmp_path):
    words = ["+model=glm4-tiny", "+cluster=local", "reward.name=code", "eval.path=null"]
    file = rows(tmp_path, [ADD, {**ADD, "starter": "x"}])
    told = [str(problem) for problem in examine([*words, f"data.path={file}"]).problems]
    assert any("'label' in " in each and "line 2 has no tests" in each and "'starter'" in each for each in told), told
    file = rows(tmp_path, [ADD, {**CALLED, "function": "plus"}])
    assert examine([*words, f"data.path={file}"]).problems == []


def test_check_reward_does_not_hand_in_labels(tmp_path, capsys):
    assert main(["check-reward", "code", rows(tmp_path, [ADD, {"inputs": [[1]], "outputs": [1]}])]) == 2
    assert "reward 'code' refuses 1 of 2 labels. row 0/2: the label has no tests" in capsys.readouterr().err
    assert main(["check-reward", "code", rows(tmp_path, [ADD, CALLED])]) == 2
    assert "reads all 2 labels, but a label is no answer to be tried. Name a column" in capsys.readouterr().err
    assert main(["check-reward", "code", rows(tmp_path, [ADD], solution=[""]), "--answers", "solutin"]) == 2
    assert "has no text in the column 'solutin'. Did you mean 'solution'?" in capsys.readouterr().err


@pytest.mark.slow
def test_check_reward_tries_given_answers(tmp_path, capsys):
    labels = [ADD, CALLED]
    answers = [fenced(READS), "<think>a?</think>" + fenced(ADDS)]
    assert main(["check-reward", "code", rows(tmp_path, labels, solution=answers), "--answers", "solution"]) == 0
    assert "right answers              2: 2 paid" in capsys.readouterr().out
    answers[1] = fenced("def add(a, b): return 7")
    assert main(["check-reward", "code", rows(tmp_path, labels, solution=answers), "--answers", "solution"]) == 1
    assert "unfit: 50.0% of right answers are paid" in capsys.readouterr().out
