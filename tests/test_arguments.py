"""Verbs with arguments of their own say in a line what is wrong with them."""

import pytest

from slime.__main__ import main
from slime.errors import EXIT_ERROR


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("eval", "slime eval: the following arguments are required: path. 'slime eval --help' says what it takes."),
        ("samples runs/x --prompts many", "slime samples: argument --prompts: invalid int value: 'many'."),
        ("follow runs/x/weights", "slime follow: the following arguments are required: URL."),
        ("report runs/x --open", "slime report: unrecognized arguments: --open."),
        ("convert bf16-to-fp8 x", "slime convert bf16-to-fp8: the following arguments are required: destination."),
        ("convert hf-to-fist x y", "slime convert: there is no conversion 'hf-to-fist'. Did you mean 'hf-to-dist'?"),
        (
            "plan convert nonsense",
            "slime plan convert: there is no conversion 'nonsense'. Choose one of: bf16-to",
        ),
        ("convert fp8-to-bf16 nowhere y", "nowhere: there is no such folder. Check the path."),
    ],
)
def test_wrong_arguments(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == EXIT_ERROR
    output = capsys.readouterr()
    assert output.err.startswith(f"slime: {said}")
    assert (output.out, output.err.count("\n")) == ("", 1)
