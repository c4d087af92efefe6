"""What is told until the first step."""

import io

from rich.console import Console

from slime.events import Ready, Starting, Waiting
from slime_observers.console import startup
from slime_observers.console.startup import Startup, last_line


def told(monkeypatch, waiting_s: float) -> str:
    monkeypatch.setattr(startup, "WAITING_S", waiting_s)
    console = Console(file=io.StringIO(), width=80)
    start = Startup(console)
    start(Starting("starting [Ray]"))
    start(Waiting("starting engines", [f"engine-{number}" for number in range(6)]))
    start(Ready("ready"))
    start(Waiting("publish", ["trainer-0"]))
    start(Starting())
    start(Waiting("starting engines", ["engine-5"]))
    start(Ready())
    start(Waiting("publish", ["trainer-0"]))
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
    Startup(console)(Waiting("starting engines", ["engine-0", "engine-1"], tmp_path))
    Startup(console)(Waiting("starting engines", ["engine-1"], tmp_path))
    said = "Loading safetensors checkpoint shards:  34% Completed | 31/90"
    first = f"   0 s  ... starting engines: waiting for engine-0, engine-1: {said}"
    assert console.file.getvalue().splitlines() == [first, "   0 s  ... starting engines: waiting for engine-1"]


def test_the_last_line_has_no_stamp_and_no_colours_and_is_short(tmp_path) -> None:
    log = tmp_path / "engine-0.log"
    log.write_text("[2026-11-23 02:15:58 TP0] \x1b[32mCapture cuda graph begin\x1b[0m\n\n")
    assert last_line(log) == "Capture cuda graph begin"
    log.write_text("x" * 9000)
    assert last_line(log) == "x" * 97 + "..."


NOISE = """
W1123 03:11:04.000000 4711 torch/utils/cpp_extension.py:178] No CUDA runtime is found, using CUDA_HOME='/usr'
[W1123 03:11:04.123456789 socket.cpp:767] [c10d] The client socket cannot be initialized
I20261123 03:11:05.000000 140 transfer_engine.cpp:486] Metrics reporting is disabled
/opt/a/quantization/gguf.py:69: UserWarning: Only CUDA supports GGUF quantization currently.
  warnings.warn(f"Only CUDA supports GGUF quantization currently.")
/opt/torch/distributed/c10d_logger.py:83: FutureWarning: `all_gather` is deprecated.
  return func(*args, **kwargs)
"""


def test_warnings_of_libraries_are_no_news(tmp_path) -> None:
    log = tmp_path / "trainer-0.log"
    log.write_text(f"Load weight begin.{NOISE}")
    assert last_line(log) == "Load weight begin."
    log.write_text(NOISE)
    assert last_line(log) == ""
    log.write_text(f"{NOISE}Warming up: 3 of 4")
    assert last_line(log) == "Warming up: 3 of 4"
    log.write_text(f"Load weight begin.\n/opt/a/kernels.py:3: UserWarning: {'x' * 5000} are slower.\n")
    assert last_line(log) == "", "the rest of a line of which the beginning was not read"
