"""Nothing that others wrote steers the user's terminal."""

import json
import logging
import os
import pty
import subprocess
import sys
import unicodedata

import pytest

from slime.__main__ import main
from slime.errors import SlimeError
from slime.events import Samples
from slime.printable import PrintableFormatter, printable
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict
from slime_observers.samples.log import SampleLog

EVERY = "".join(chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs"))
HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[2J\x9b2J\u202eevil\u2066\x7f\r\b"


def steering(text: str) -> set[str]:
    """Controls and formats of Unicode in it, but for the end of a line."""
    return {each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Cs")} - {"\n"}


def test_every_control_and_format_is_named() -> None:
    assert steering(printable(EVERY)) == {"\t"}
    assert (
        printable("a\x1b[1m\x9b \u202e\ud800\r\n\té日本🙂\u00a0")
        == r"a\x1b[1m\x9b <U+202E><U+D800>\x0d" + "\n\té日本🙂\u00a0"
    )


def test_an_error_is_printable_for_people_and_raw_for_programs() -> None:
    error = SlimeError(f"no {HOSTILE} x", where=HOSTILE, todo=f"Do {HOSTILE}.")
    assert steering(str(error)) == set()
    assert r"\x1b]52;c;ZXZpbA==\x07" in str(error)
    assert error.document()["where"] == HOSTILE


def test_a_word_of_the_command_line_is_quoted_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([HOSTILE]) == 2
    shown = capsys.readouterr().err
    assert steering(shown) == set()
    assert "<U+202E>evil" in shown


def test_a_warning_is_printable(tmp_path: os.PathLike[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert logging.lastResort is not None
    assert isinstance(logging.lastResort.formatter, PrintableFormatter)
    logging.lastResort.handle(logging.makeLogRecord({"msg": "%s: odd", "args": (HOSTILE,), "levelno": logging.WARNING}))
    assert steering(capsys.readouterr().err) == set()


ON_TERMINAL = """
import json, sys
from pathlib import Path
from slime.__main__ import main
from slime.events import Waiting
from slime_observers.console.progress import Progress
from slime_observers.console.startup import Startup
from slime.types import Prompt, Sample, Verdict
folder, hostile = Path(sys.argv[1]), json.loads(sys.argv[2])
prompt = Prompt("0/0", ({"role": "user", "content": hostile + "?"},), (1,))
with Progress("rl", 1) as bar:
    bar.samples([Sample(prompt, 0, response=hostile + "!", verdict=Verdict.of(1.0))])
(folder / "engine-0.log").write_text(hostile)
start = Startup()
start._told -= 60
start(Waiting("starting " + hostile, ["engine-0"], folder))
main(["samples", str(folder)])
"""


def test_what_a_model_answers_reaches_a_terminal_by_name_and_a_file_as_it_is(tmp_path: os.PathLike[str]) -> None:
    """The panel, a waiting line and `slime samples`, on a real terminal."""
    prompt = Prompt(HOSTILE, ({"role": HOSTILE, "content": HOSTILE},), (1,), label=HOSTILE)
    verdict = Verdict.of(1.0, **{HOSTILE: 1.0})
    sample = Sample(prompt, 0, [Segment((), [1], [0.0], [1], [WeightSpan(1, 1)])], Status.COMPLETED, HOSTILE, verdict)
    folder = os.fspath(tmp_path)
    os.mkdir(f"{folder}/samples")
    log = SampleLog(type(tmp_path)(folder) / "samples", 1)
    log(Samples(1, [], [(Group(prompt, [sample]), Decision(False, HOSTILE))]))
    with open(f"{folder}/samples/step-000001.jsonl") as file:
        assert json.loads(file.read())["response"] == HOSTILE
    main_end, other = pty.openpty()
    words = [sys.executable, "-c", ON_TERMINAL, folder, json.dumps(HOSTILE)]
    child = subprocess.Popen(words, stdout=other, stderr=other, env=os.environ | {"TERM": "xterm", "COLUMNS": "400"})
    os.close(other)
    output = b""
    while chunk := _read(main_end):
        output += chunk
    os.close(main_end)
    assert child.wait() == 0, output
    shown = output.decode()
    assert shown.count(r"\x1b]52;c;ZXZpbA==\x07") >= 6
    assert "\x1b]" not in shown  # rich itself moves the cursor and sets colours: CSI, and no OSC
    assert steering(shown) <= {"\x1b", "\r"}
    assert "\x1b[2J" not in shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the other end's closing as EIO
        return b""
