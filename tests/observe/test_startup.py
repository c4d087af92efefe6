"""What is told until the first step."""

import io

from rich.console import Console

from slime.observe import startup
from slime.observe.startup import Startup


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
