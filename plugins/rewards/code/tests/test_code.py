"""Python in the answer against tests: every form of label, and programs that cheat."""

from __future__ import annotations

import asyncio
import json

import pytest

from slime.__main__ import main
from slime.compose.compose import compose
from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.service import RewardService
from slime.types import Prompt, Sample, Verdict, VerdictKind
from slime_plugin_code import sandbox
from slime_plugin_code.reward import CodeReward, cases_of, program_of
from slime_testing.plugins import RewardCase, check_reward

ADD = {"inputs": ["3 4", "1 1"], "outputs": ["7", "2\n"]}
CALLED = {"function": "add", "inputs": [[3, 4], [1, 1]], "outputs": [7, 2]}
ASSERTED = ["assert add(3, 4) == 7", "assert add([1], [1]) == [1, 1]"]
READS = "a, b = map(int, input().split())\nprint(a + b)"
ADDS = "def add(a, b):\n    return a + b"

pytestmark = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


def judged(value: float, passed: float, *, late: bool = False) -> Verdict:
    return Verdict.of(value, tests_passed=passed, out_of_time=float(late))


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


def test_the_last_block_behind_the_thinking_is_run():
    assert program_of("```python\n1\n```</think>```py\n2\n``` and ```\n3\n```") == "3\n"
    assert program_of("```python\n1\n```</think>no") is None
    assert program_of("<think>```python\n1\n```") is None
    assert program_of("print(1)") is None


@pytest.mark.parametrize(
    "label", ["", "7", [], {"inputs": ["1"], "outputs": []}, ["assert add(1, 1) > 1"], ["import os"],
              {"function": "os.system", "inputs": [["ls"]], "outputs": [0]}, None]
)  # fmt: skip
def test_a_label_without_tests_is_an_error_never_a_0(label):
    assert verdict(ADDS, label).kind is VerdictKind.ERROR


def test_values_are_compared_as_json_knows_them():
    for value, wanted in [("(1, 2)", [1, 2]), ("{'a': (1,)}", {"a": [1]}), ("0.1 + 0.2", 0.3), ("2.0", 2)]:
        assert verdict(f"def f(): return {value}", {"function": "f", "inputs": [[]], "outputs": [wanted]}).value == 1
    assert len(cases_of(ADD)) == 2


def test_where_nothing_confines_the_run_is_refused(monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has no Landlock")
    words = ["+model=glm4-tiny", "+cluster=local", "reward.name=code"]
    with pytest.raises(SlimeError, match="the sandbox cannot be had here: the kernel has no Landlock"):
        compose(words)
    assert verdict(ADDS, CALLED).kind is VerdictKind.ERROR
    assert compose([*words, "reward.options.unconfined=true"]).reward.name == "code"


def test_contract():
    check_reward("code", [RewardCase(fenced(ADDS), CALLED, judged(1.0, 1.0)),
                          RewardCase("no code", CALLED, judged(0.0, 0.0))])  # fmt: skip


@pytest.mark.slow
def test_check_reward_finds_it_fit(tmp_path, capsys):
    labels = [json.dumps({"inputs": [""], "outputs": [str(number)]}) for number in (37, 58)]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({"prompt": "Print it.", "label": label}) + "\n" for label in labels))
    template = fenced("import json\nprint(json.loads('''{label}''')['outputs'][0])")
    assert main(["check-reward", "code", str(file), "--template", template]) == 0, capsys.readouterr().out
