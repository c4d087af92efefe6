"""A user's file is imported once, beside its folder; what it is called with goes by names."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.by_path.called import Form, Own, PathOptions, imported
from slime.by_path.source import Parameters
from slime.errors import SlimeError

FORM = Form(("group", "rewards", "args"), ("group",))


def test_a_file_finds_those_beside_it_and_is_imported_once(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("limit = 3\n")
    file = tmp_path / "my.py"
    file.write_text("from .beside import limit\nfrom . import beside\ndef f():\n    return limit, beside.limit\n")
    first, second = (imported(f"{file}:f", None, "filter.path") for _ in range(2))
    assert first is second
    assert first() == (3, 3)
    (other := tmp_path / "other").mkdir()
    (other / "my.py").write_text("def f():\n    return 1\n")
    assert imported(f"{other}/my.py:f", None, "filter.path")() == 1
    file.write_text("def f():\n    return 2\n")
    assert imported(f"{file}:f", None, "filter.path")() == 2, "it was changed"


def test_what_an_import_raises_is_told_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.py"
    file.write_text("x = 1\nassert x == 2, 'not two'\ndef f(): ...\n")
    with pytest.raises(
        SlimeError, match=r"^filter.path: .*my.py cannot be imported at line 2: AssertionError: not two"
    ):
        imported(f"{file}:f", None, "filter.path")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("parameters", "arguments", "matched"),
    [
        (Parameters(["rewards", "group"], ["rewards"]), {}, {"rewards": "rewards", "group": "group"}),
        (Parameters(["g"], ["g"]), {}, {"g": "group"}),
        (Parameters(["g", "least"], ["g", "least"]), {"least": 1}, {"g": "group"}),
        (Parameters(["group", "least"], ["group"], True), {"more": 1}, {"group": "group"}),
        (Parameters(["args", "rewards"], ["args", "rewards"]), {"more": 1}, {"args": "args", "rewards": "rewards"}),
    ],
)
def test_parameters_are_matched_by_name(
    parameters: Parameters, arguments: dict[str, int], matched: dict[str, str]
) -> None:
    assert FORM.match(parameters, "my.py:f", arguments, "filter.path") == matched


@pytest.mark.parametrize(
    ("parameters", "arguments", "said"),
    [
        (Parameters(["rewards", "grup"], ["rewards", "grup"]), {}, "takes 'grup', which nobody gives it.*'group'"),
        (Parameters(["one", "two"], ["one", "two"]), {}, "takes 'one'.*Or set filter.options.arguments.one="),
        (
            Parameters(["group", "least"], ["group"]),
            {"last": 1},
            "arguments: my.py:f takes no 'last'. Did you mean 'least'",
        ),
    ],
)
def test_what_does_not_match_is_told(parameters: Parameters, arguments: dict[str, int], said: str) -> None:
    with pytest.raises(SlimeError, match=said):
        FORM.match(parameters, "my.py:f", arguments, "filter.path")


def test_a_class_needs_a_kind_that_takes_one(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text("class A:\n    def f(self): ...\n")
    with pytest.raises(SlimeError, match="is a class, not a function"):
        Own(PathOptions(f"{file}:A"), "filter.path")
