"""What users see, to the letter: every command in tests/transcripts and its output.

Rewrite them after a wanted change with `UPDATE_TRANSCRIPTS=1 pytest tests/test_transcripts.py`, and read the diff.
"""

import os
import shlex
from pathlib import Path

import pytest

from slime.__main__ import main

FOLDER = Path(__file__).parent / "transcripts"
PROMPT = "$ slime"


def commands(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.startswith(PROMPT)]


def run(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    code = main(shlex.split(command.removeprefix(PROMPT)))
    shown = capsys.readouterr()
    text = (shown.out + shown.err).replace(str(FOLDER.parents[1]), "<checkout>").replace(str(Path.cwd()), "<here>")
    return f"{command}\n{text}" + (f"(exit {code})\n" if code else "")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.txt")), ids=lambda file: file.stem)
def test_transcript(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # which argparse asks
    monkeypatch.chdir(tmp_path)  # where no model is fetched yet and no run has been
    assert commands(file), "a transcript has commands"
    seen = "\n".join(run(command, capsys) for command in commands(file))
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        file.write_text(seen)
    assert seen == file.read_text()
