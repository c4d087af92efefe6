"""Every way a reward can misbehave, in real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.reward.service import RewardService
from slime.types import Prompt, Sample, Verdict, VerdictKind

pytestmark = pytest.mark.usefixtures("installed")
GONE_WITHIN_S = 10.0  # killing takes milliseconds; the rest is for a busy machine


def config(**keys: Any) -> RewardConfig:
    return RewardConfig(name="misbehaving", **{"timeout_s": 30.0, "memory_mb": 256, **keys})


def sample(behaviour: str, label: Any = None) -> Sample:
    return Sample(Prompt("0/0", (), (1, 2), label), 0, response=behaviour)


def score(service: RewardService, behaviour: str, label: Any = None) -> Verdict:
    return asyncio.run(service.score(sample(behaviour, label)))


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def service(installed: None) -> Iterator[RewardService]:
    with RewardService(config()) as service:
        yield service


@pytest.fixture
def impatient() -> Iterator[RewardService]:
    with RewardService(config(timeout_s=0.5)) as service:
        yield service


def test_a_value_comes_back_with_its_parts(service: RewardService) -> None:
    assert score(service, "value", 0.5) == Verdict.of(0.5, length=3.0)


def test_an_invalid_verdict_keeps_its_reason(service: RewardService) -> None:
    assert score(service, "greet") == Verdict.invalid("hello")


def test_options_reach_the_factory() -> None:
    with RewardService(config(options={"greeting": "good day"})) as service:
        assert score(service, "greet").reason == "good day"


@pytest.mark.parametrize("answer", [1.0, None, True, "1", float("nan"), (1, 2)])
def test_anything_but_a_verdict_is_an_error_that_says_so(service: RewardService, answer: Any) -> None:
    verdict = score(service, "echo", answer)
    assert verdict.kind is VerdictKind.ERROR
    assert f"score returned {answer!r}, not a Verdict" in verdict.reason


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_an_error(service: RewardService, number: float) -> None:
    verdict = score(service, "value", number)
    assert (verdict.kind, verdict.value) == (VerdictKind.ERROR, None)
    assert f"value={number!r}" in verdict.reason


def test_a_part_that_is_not_finite_is_an_error_that_names_it(service: RewardService) -> None:
    assert "fluency=nan" in score(service, "unfinite_part").reason


def test_a_verdict_of_no_known_kind_is_an_error(service: RewardService) -> None:
    verdict = score(service, "odd_kind")
    assert verdict.kind is VerdictKind.ERROR
    assert "perhaps" in verdict.reason


def test_an_exception_is_an_error_with_type_message_and_lines(service: RewardService) -> None:
    verdict = score(service, "fail", "two\nlines")
    assert verdict.kind is VerdictKind.ERROR
    assert verdict.reason.startswith("ZeroDivisionError: two lines (misbehaving.py:")
    assert "in fail <- misbehaving.py:" in verdict.reason
    assert verdict.reason.endswith("in score)")


def test_an_exception_in_a_library_also_names_the_reward_s_line(service: RewardService) -> None:
    reason = score(service, "fail_below").reason
    assert "pathlib" in reason
    assert "misbehaving.py:" in reason


def test_a_reason_is_one_short_line(service: RewardService) -> None:
    reason = score(service, "long_reason").reason
    assert "\n" not in reason
    assert len(reason) == 500


def test_a_worker_imports_nothing_heavy(service: RewardService) -> None:
    heavy = ["torch", "ray", "sglang", "transformers", "megatron", "hydra", "numpy"]
    assert score(service, "modules", heavy).parts == dict.fromkeys(heavy, 0.0)


def test_printing_and_reading_input_disturb_nothing(service: RewardService) -> None:
    assert score(service, "chatter") == Verdict.of(0.0)
    assert score(service, "value", 2.0).value == 2.0


def test_what_rewards_print_and_raise_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    with RewardService(config(), log) as service:
        score(service, "chatter")
        score(service, "fail", "seen in the log")
    assert "noise" in log.read_text()
    assert "ZeroDivisionError: seen in the log" in log.read_text()


def test_a_forked_child_that_returns_does_not_answer_too(service: RewardService) -> None:
    assert score(service, "fork_and_return").value != 0.0
    assert [score(service, "value", float(i)).value for i in range(20)] == [float(i) for i in range(20)]


@pytest.mark.parametrize("behaviour", ["sleep", "hang_holding_the_gil", "hang_deaf_to_signals"])
def test_a_hanging_reward_is_a_timeout_and_the_next_sample_is_served(impatient: RewardService, behaviour: str) -> None:
    began = time.monotonic()
    verdict = score(impatient, behaviour, 1000)
    assert verdict == Verdict.timeout("no verdict within reward.timeout_s=0.5 s")
    assert time.monotonic() - began < GONE_WITHIN_S
    assert score(impatient, "value", 1.0).value == 1.0


def test_a_timeout_kills_the_worker_with_its_children_and_daemons(impatient: RewardService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    assert score(impatient, "hang_with_children", str(pid_file)).kind is VerdictKind.TIMEOUT
    pids = [int(pid) for pid in pid_file.read_text().split()]
    assert len(pids) == 3
    wait_until_gone(pids)


def test_a_crash_takes_what_the_reward_started_along(service: RewardService, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    assert "SIGSEGV" in score(service, "segfault_with_a_daemon", str(pid_file)).reason
    wait_until_gone([int(pid_file.read_text())])


def test_a_worker_whose_guard_is_killed_dies_and_is_replaced(service: RewardService) -> None:
    pid = int(score(service, "process_id").value or 0)
    guard = psutil.Process(pid).parent()
    assert guard is not None
    guard.kill()
    wait_until_gone([pid])
    assert score(service, "value", 1.0).kind is VerdictKind.ERROR
    assert score(service, "value", 1.0).value == 1.0


@pytest.mark.parametrize(
    ("behaviour", "argument", "cause"),
    [
        ("segfault", None, "was killed by SIGSEGV"),
        ("kill_itself", int(signal.SIGABRT), "was killed by SIGABRT"),
        ("kill_itself", int(signal.SIGKILL), "was killed by SIGKILL (the kernel sends it"),
        ("leave", 3, "exited with code 3"),
        ("leave", 0, "exited with code 0"),
        ("close_every_file", None, "exited with code 1"),
    ],
)
def test_a_death_is_an_error_that_names_its_cause(
    service: RewardService, behaviour: str, argument: int | None, cause: str
) -> None:
    verdict = score(service, behaviour, argument)
    assert verdict.kind is VerdictKind.ERROR
    assert f"the reward's process {cause}" in verdict.reason
    assert score(service, "value", 1.0).value == 1.0


def test_memory_beyond_the_limit_is_an_error_and_a_new_worker(service: RewardService) -> None:
    before = score(service, "process_id").value
    assert score(service, "grow", 100).value == 1.0
    verdict = score(service, "grow", 200)
    assert verdict.kind is VerdictKind.ERROR
    assert "reward.memory_mb=256" in verdict.reason
    assert score(service, "process_id").value != before
    assert score(service, "grow", 200).value == 1.0  # the hoard of the old worker is gone


def test_a_slow_sample_holds_up_only_its_worker(tmp_path: Path) -> None:
    end = tmp_path / "end"

    async def race(service: RewardService) -> list[float | None]:
        slow = asyncio.create_task(service.score(sample("wait_for", str(end))))
        quick = await asyncio.gather(*(service.score(sample("value", float(i))) for i in range(50)))
        assert not slow.done()
        end.touch()
        assert (await slow).value == 1.0
        return [verdict.value for verdict in quick]

    with RewardService(config(num_workers=2)) as service:
        assert asyncio.run(race(service)) == [float(i) for i in range(50)]


def test_every_sample_gets_its_own_answer(service: RewardService) -> None:
    async def all_at_once() -> list[float | None]:
        verdicts = await asyncio.gather(*(service.score(sample("value", float(i))) for i in range(200)))
        return [verdict.value for verdict in verdicts]

    assert asyncio.run(all_at_once()) == [float(i) for i in range(200)]


def test_a_cancelled_sample_leaves_the_service_usable(service: RewardService) -> None:
    async def cancel_one() -> float | None:
        task = asyncio.create_task(service.score(sample("sleep", 1000)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await service.score(sample("value", 7.0))).value

    assert asyncio.run(cancel_one()) == 7.0


def test_a_large_sample_goes_through(service: RewardService) -> None:
    big = sample("value", 1.0)
    big.response_tokens = list(range(300_000))
    assert asyncio.run(service.score(big)).value == 1.0


def test_close_is_prompt_and_ends_what_is_in_flight(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"

    async def close_under_way(service: RewardService) -> list[Verdict]:
        flying = [asyncio.create_task(service.score(sample("hang_with_children", str(pid_file)))) for _ in range(2)]
        while not pid_file.exists() or len(pid_file.read_text().split()) < 3:
            await asyncio.sleep(0.01)
        service.close()
        return await asyncio.wait_for(asyncio.gather(*flying), GONE_WITHIN_S)

    service = RewardService(config())
    service.start()
    verdicts = asyncio.run(close_under_way(service))
    assert verdicts == [Verdict.error("the reward service was closed")] * 2
    wait_until_gone([int(pid) for pid in pid_file.read_text().split()])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("misbehaving", {"greting": "x"}, "plugin reward-zoo 1.2: reward 'misbehaving' cannot be created: TypeError"),
        ("unimportable", {}, "plugin reward-zoo 1.2: reward 'unimportable' cannot be created: ModuleNotFoundError"),
        ("stillborn", {}, "plugin reward-zoo 1.2: reward 'stillborn' cannot be created: its process was killed by"),
        ("misbehavin", {}, "Did you mean 'misbehaving'?"),
    ],
)
def test_a_reward_that_cannot_be_created_stops_the_start(name: str, options: dict[str, Any], message: str) -> None:
    service = RewardService(RewardConfig(name=name, options=options, num_workers=2))
    with pytest.raises(SlimeError) as caught:
        service.start()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


DRIVER = """
import asyncio, sys
sys.path[:] = {path!r}
from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.types import Prompt, Sample

with RewardService(RewardConfig(name="misbehaving", timeout_s=60.0, num_workers=2)) as service:
    asyncio.run(service.score(Sample(Prompt("0/0", (), (), {pid_file!r}), 0, response="hang_with_children")))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_driver(tmp_path: Path, number: int) -> None:
    pid_file = tmp_path / "pids"
    code = DRIVER.format(path=sys.path, pid_file=str(pid_file))
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as driver:
        while not pid_file.exists() or len(pid_file.read_text().split()) < 3:
            assert driver.poll() is None, "the driver ended too early"
            time.sleep(0.01)
        below = [process.pid for process in psutil.Process(driver.pid).children(recursive=True)]
        assert {int(pid) for pid in pid_file.read_text().split()} <= set(below)
        os.kill(driver.pid, number)
    wait_until_gone(below)


def test_the_way_to_a_worker_and_back_is_short(service: RewardService) -> None:
    """Far below 1 ms a sample on an idle core; the bound leaves room for a loaded machine."""

    async def mean_seconds(count: int) -> float:
        began = time.perf_counter()
        for i in range(count):
            await service.score(sample("value", float(i)))
        return (time.perf_counter() - began) / count

    assert min(asyncio.run(mean_seconds(100)) for _ in range(3)) < 1e-3
