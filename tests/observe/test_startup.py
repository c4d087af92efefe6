"""What is told until the first step."""

import io

from rich.console import Console

from slime.observe import startup
from slime.observe.startup import Startup, last_line


def told(monkeypatch, waiting_s: float) -> str:
    monkeypatch.setattr(startup, "WAITING_S", waiting_s)
    console = Console(file=io.StringIO(), width=80)
    start = Startup(console)
    start.say("starting [Ray]")
    start.waiting("starting engines", [f"engine-{number}" for number in range(6)])
    start.ready("ready")
    start.say("more")
    start.waiting("publish", ["trainer-0"])
    with start.again():
        start.waiting("starting engines", ["engine-5"])
    start.waiting("publish", ["trainer-0"])
    return console.file.getvalue()


def test_what_lasts_is_told_with_who_is_waited_for(monkeypatch) -> None:
    waiting = "... starting engines: waiting for engine-0, engine-1, engine-2, engine-3 and 2 more"
    again = "... starting engines: waiting for engine-5"
    assert told(monkeypatch, 0.0) == f"   0 s  starting [Ray]\n   0 s  {waiting}\n   0 s  ready\n   0 s  {again}\n"


def test_what_is_quick_is_not(monkeypatch) -> None:
    assert told(monkeypatch, 60.0) == "   0 s  starting [Ray]\n   0 s  ready\n"


def test_how_far_a_process_is_stands_in_its_log(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(startup, "WAITING_S", 0.0)
    bar = "Loading safetensors checkpoint shards:  {} Completed | {}/90"
    (tmp_path / "engine-0.log").write_text(
        "[2026-11-23 02:15:58 TP0] Load weight begin.\n"
        + "\r".join(bar.format(*state) for state in (("0%", 0), ("34%", 31)))
    )
    console = Console(file=io.StringIO(), width=80)
    Startup(console).waiting("starting engines", ["engine-0", "engine-1"], tmp_path)
    Startup(console).waiting("starting engines", ["engine-1"], tmp_path)
    said = "Loading safetensors checkpoint shards:  34% Completed | 31/90"
    first = f"   0 s  ... starting engines: waiting for engine-0, engine-1: {said}"
    assert console.file.getvalue().splitlines() == [first, "   0 s  ... starting engines: waiting for engine-1"]


def test_the_last_line_has_no_stamp_and_no_colours_and_is_short(tmp_path) -> None:
    log = tmp_path / "engine-0.log"
    log.write_text("[2026-11-23 02:15:58 TP0] \x1b[32mCapture cuda graph begin\x1b[0m\n\n")
    assert last_line(log) == "Capture cuda graph begin"
    log.write_text("x" * 9000)
    assert last_line(log) == "x" * 97 + "..."
