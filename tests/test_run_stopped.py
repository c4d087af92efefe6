"""Runs that are asked to stop: after the step, with a checkpoint; the same command goes on as if nothing had been."""

import signal
from pathlib import Path

import pytest

from slime.errors import EXIT_STOPPED
from tests.running import NO_STOP, Run

pytestmark = pytest.mark.slow
ONLY_AT_THE_END = {"train.checkpoint.interval": 0, "sft.num_steps": 0, "sft.lr_warmup_steps": 0, "sft.path": "null"}
"""So that nothing but the stop can have saved a checkpoint before."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("whole"), settings=ONLY_AT_THE_END, forked=True).start().succeed()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_saves_after_the_step(whole: Run, tmp_path: Path, number: signal.Signals) -> None:
    """The driver stands still while it is signalled, so the step is known: the one after the newest row."""
    run = Run(tmp_path, settings=ONLY_AT_THE_END, forked=True).start()
    run.until(lambda: run.has_step("rl", 1))
    run.kill(number)
    assert run.process.returncode == EXIT_STOPPED, run.text()
    [checkpoint] = (run.path / "checkpoints").glob("step-*")
    step = int(checkpoint.name.removeprefix("step-"))
    assert [row["step"] for row in run.rows("rl")][-1] == step < 4
    told, last = run.text().splitlines()[-2:]
    assert told == f"slime: {number.name}: the run stops after this step; a second signal stops it now"
    then = f"the same command continues after rl {step}. Start the same command again to go on."
    assert last == f"slime: {number.name} came: {then}"
    assert run.strays() == []
    assert '"interrupted"' in (run.path / "status.json").read_text()
    run.start().succeed()
    assert run.weights() == whole.weights()


def test_a_second_signal_stops_it_now(tmp_path: Path) -> None:
    run = Run(tmp_path, settings={**ONLY_AT_THE_END, "run.num_steps": 2000, **NO_STOP}, forked=True).start()
    run.until(lambda: run.has_step("rl", 1))
    run.process.send_signal(signal.SIGTERM)
    run.until(lambda: "a second signal" in run.text())
    run.kill(signal.SIGTERM)
    assert run.process.returncode in (130, EXIT_STOPPED), run.text()
    assert run.strays() == []


def test_no_step_begins_that_would_end_too_late(tmp_path: Path) -> None:
    run = Run(
        tmp_path, settings={**ONLY_AT_THE_END, "run.stop_at": "30s", "run.num_steps": 2000, **NO_STOP}, forked=True
    ).start()
    assert run.finish() == EXIT_STOPPED, run.text()
    step = run.rows("rl")[-1]["step"]
    assert [path.name for path in (run.path / "checkpoints").glob("step-*")] == [f"step-{step:06d}"]
    assert "(run.stop_at): the same command continues after" in run.text().splitlines()[-1]
