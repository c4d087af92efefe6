"""The display, on a real pseudo-terminal and off one."""

import io
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from slime.events import Evaluation, Events, Step, TrainersLost
from slime.types import Prompt, Sample, Verdict
from slime_observers.console import progress
from slime_observers.console.progress import Progress, ProgressLine, duration

VALUES = {"rollout/reward_mean": 0.5, "train/loss": 0.0123, "tokens_per_s": 1234.4, "seconds/train": 3.0} | {
    "rollout/response_length_mean": 1024.2,
    "train/entropy": 0.25,
}


def plain(live=True, terminal=False):
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False)


def test_lines_off_a_terminal(monkeypatch):
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    console = plain()
    with Progress("rl", 3, done=1, console=console) as bar:
        bar.values({"eval/reward_mean": 0.25}, 1)
        bar.status("generate", 12, 32)
        bar.step(2, VALUES)
        bar.step(3, VALUES | {"eval/reward_mean": 0.75})
    lines = console.file.getvalue().splitlines()
    assert re.sub(r"eta \S+", "eta T", lines[0]) == (
        "rl 2/3  reward 0.500  held-out 0.250 (step 1)  length 1,024  entropy 0.250  tokens/s 1,234  eta T"
    )
    assert lines[1].endswith("held-out 0.750 (step 3)  length 1,024  entropy 0.250  tokens/s 1,234  eta 0:00")
    assert len(lines) == 2


def test_fast_steps_share_lines_and_the_last_is_always_printed(monkeypatch):
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 60.0)  # longer than a busy machine takes for them
    console = plain()
    with Progress("sft", 500, console=console) as bar:
        for step in range(1, 501):
            bar.step(step, VALUES)
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("sft 1/500 ")
    assert lines[-1].startswith("sft 500/500 ")
    assert "loss 0.0123" in lines[-1]
    assert "entropy" not in lines[-1]
    assert len(lines) == 2


def test_the_eta_knows_steps_only(monkeypatch):
    """Five seconds before the first step, then steps of 0.1 s: 100 more take 10 s, and 4 minutes if the start counted.
    By a clock of its own: a busy machine makes sleeps longer."""
    now, console = [1000.0], plain()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    with Progress("rl", 102, console=console) as bar:
        now[0] += 5.0
        bar.values({"eval/reward_mean": 0.25}, 0)
        for step in (1, 2):
            now[0] += 0.1
            bar.step(step, VALUES)
    assert console.file.getvalue().splitlines()[-1].endswith("eta 0:10")


def test_a_terminal_without_progress_gets_lines():
    console = plain(terminal=True)
    with Progress("rl", 1, live=False, console=console) as bar:
        bar.step(1, VALUES)
    assert console.file.getvalue().startswith("rl 1/1 ")


ON_TERMINAL = """
import logging, threading, time
from slime_observers.console import progress
progress.REFRESH_INTERVAL_S = 0.0
def worker():
    for line in range(50):
        print(f"worker line {line}.")
with progress.Progress("rl", 2) as bar:
    threads = [threading.enumerate()]
    thread = threading.Thread(target=worker)
    thread.start()
    for done in range(33):
        bar.status("generate", done, 32)
        time.sleep(0.001)
    thread.join()
    logging.getLogger("slime").warning("a warning")
    bar.step(1, {"rollout/reward_mean": 0.5})
    bar.step(2, {"rollout/reward_mean": 0.75, "tokens_per_s": 2000})
    assert threading.enumerate() == [threading.main_thread()], "the display has no thread"
print("after")
"""


def on_terminal(code):
    """What a program writes to a terminal of 80 columns."""
    main, other = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=other, stderr=other, env=environment)
    os.close(other)
    output = b""
    while chunk := _read(main):
        output += chunk
    os.close(main)
    assert child.wait() == 0, output.decode()
    return output.decode()


def _read(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the other end's closing as EIO
        return b""


def test_the_bar_on_a_terminal_leaves_others_lines_whole():
    output = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", on_terminal(ON_TERMINAL)).replace("\r", "\n").split("\n")
    lines = [line.strip() for line in output]
    assert [line for line in lines if line.startswith("worker")] == [f"worker line {number}." for number in range(50)]
    assert "a warning" in lines
    assert any(line.endswith("0/2  eta -  generate 12/32") for line in lines)
    last = [line for line in lines if line][-3:]
    assert re.fullmatch(r"rl\s+━{30}\s+2/2  eta 0:00", last[0])
    assert last[1:] == ["reward 0.750  tokens/s 2,000", "after"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (75.4, "1:15"), (59.6, "1:00"), (4000, "1:06:40")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_the_best_and_the_worst_sample_are_on_a_terminal_in_a_line_each():
    def sample(reward, response):
        prompt = Prompt("0/0", ({"role": "user", "content": "how\nmuch?"},), (1,))
        verdict = Verdict.invalid("no label") if reward is None else Verdict.of(reward)
        return Sample(prompt, 0, response=response, verdict=verdict)

    console = plain(terminal=True)
    with Progress("rl", 3, console=console) as bar:
        bar.samples([sample(0.5, "middle"), sample(1.0, "a\nb"), sample(None, "unjudged"), sample(-1.0, "x" * 99)])
    shown = console.file.getvalue()
    assert "+1.000  how much?  ->  a b" in shown
    assert "-1.000  how much?  ->  ..." in shown
    assert "middle" not in shown
    assert "unjudged" not in shown
    with Progress("rl", 3, console=plain(terminal=True)) as bar:
        bar.samples([sample(None, "unjudged")])


def test_trainers_that_start_again_have_a_line(capsys):
    events = Events(ProgressLine())
    events.publish(TrainersLost("trainer-0 (pid 7 on h): was killed by SIGKILL", 1, "", 1, 2))
    with events.stage("rl", 3, 1):
        events.publish(TrainersLost("trainer-3: no answer within 20 s while train_rl", 8, "rl 40", 2, 2))
    assert capsys.readouterr().out.splitlines()[:2] == [
        "trainer-0 (pid 7 on h): was killed by SIGKILL; 1 trainer rank starts again from the beginning (1 of 2)",
        "trainer-3: no answer within 20 s while train_rl; 8 trainer ranks start again after rl 40 (2 of 2)",
    ]


def test_the_line_of_a_run_follows_its_events(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", 0.0)
    line = ProgressLine()
    events = Events(line)
    events.phase("train")  # nothing runs yet
    with events.stage("rl", 3, 1):
        events.publish(Evaluation(1, [], {"eval/reward_mean": 0.25}))
        events.publish(Step("rl", 1, VALUES, complete=False))
        events.publish(Step("rl", 2, VALUES))
    with events.stage("sft", 1):
        events.publish(Step("sft", 1, VALUES))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("rl 2/3  reward 0.500  held-out 0.250 (step 1)")
    assert second.startswith("sft 1/1  reward 0.500  length 1,024  loss 0.0123")
