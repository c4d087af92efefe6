"""Every way a reward can misbehave, in real worker processes."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.reward.service import RewardService
from slime.segments import Segment, WeightSpan
from slime.types import Verdict, VerdictKind
from tests.reward.asking import GONE_WITHIN_S, rewards, score, wait_until_gone
from tests.reward.misbehaving import sample
from tests.reward.misdeeds import MISDEEDS, Misdeed

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def pair(installed: None) -> Iterator[RewardService]:
    with rewards(num_workers=2, timeout_s=4.0, memory_mb=512) as service:
        yield service


def test_a_value_comes_back_with_its_parts(service: RewardService) -> None:
    assert score(service, "value", 0.5) == Verdict.of(0.5, length=3.0)


def test_an_invalid_verdict_keeps_its_reason(service: RewardService) -> None:
    assert score(service, "greet") == Verdict.invalid("hello")


def test_options_reach_the_factory() -> None:
    with rewards(options={"greeting": "good day"}) as service:
        assert score(service, "greet").reason == "good day"


@pytest.mark.parametrize("answer", [1.0, None, True, "1", float("nan"), (1, 2)])
def test_anything_but_a_verdict_is_an_error_that_says_so(service: RewardService, answer: Any) -> None:
    verdict = score(service, "echo", answer)
    assert verdict.kind is VerdictKind.ERROR
    assert f"score returned {answer!r}, not a Verdict" in verdict.reason


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e308, -1e13])
def test_a_value_that_is_not_finite_or_absurd_is_an_error(service: RewardService, number: float) -> None:
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
    with rewards(log) as service:
        score(service, "chatter")
        score(service, "fail", "seen in the log")
    assert "noise" in log.read_text()
    assert "ZeroDivisionError: seen in the log" in log.read_text()


def test_a_forked_child_that_returns_does_not_answer_too(service: RewardService) -> None:
    assert score(service, "fork_and_return").value != 0.0
    assert [score(service, "value", float(i)).value for i in range(20)] == [float(i) for i in range(20)]


@pytest.mark.parametrize("misdeed", MISDEEDS.values(), ids=MISDEEDS.keys())
def test_whatever_a_sample_does_the_others_get_their_own_values(
    pair: RewardService, misdeed: Misdeed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a pickle would leave its mark

    async def among_good_ones() -> list[Verdict]:
        samples = [sample("value", float(i)) for i in range(40)]
        samples.insert(20, sample(misdeed.behaviour, misdeed.label))
        return list(await asyncio.gather(*(pair.score(each) for each in samples)))

    verdicts = asyncio.run(among_good_ones())
    assert verdicts.pop(20).kind in misdeed.kinds
    assert verdicts == [Verdict.of(float(i), length=3.0) for i in range(40)]
    assert not list(tmp_path.iterdir())


def test_a_guard_that_was_stopped_costs_the_next_sample_nothing(impatient: RewardService) -> None:
    assert score(impatient, "kill_guard", int(signal.SIGSTOP)).kind is VerdictKind.VALUE
    assert score(impatient, "leave_behind", 1).value == 1.0


def test_a_slow_sample_holds_up_only_its_worker(tmp_path: Path) -> None:
    end = tmp_path / "end"

    async def race(service: RewardService) -> list[float | None]:
        slow = asyncio.create_task(service.score(sample("wait_for", str(end))))
        quick = await asyncio.gather(*(service.score(sample("value", float(i))) for i in range(50)))
        assert not slow.done()
        end.touch()
        assert (await slow).value == 1.0
        return [verdict.value for verdict in quick]

    with rewards(num_workers=2) as service:
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


def test_a_sample_that_cannot_be_sent_is_an_error(service: RewardService) -> None:
    odd = sample("value", 1.0)
    odd.metadata["callback"] = lambda: None
    verdict = asyncio.run(service.score(odd))
    assert verdict.kind is VerdictKind.ERROR
    assert "the request cannot be sent to the reward" in verdict.reason


def test_a_sample_that_cannot_be_read_is_an_error_and_the_worker_lives_on(
    service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_in_this_process")
    module.Thing = type("Thing", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before = score(service, "process_id")
    verdict = score(service, "echo", module.Thing())
    assert verdict.kind is VerdictKind.ERROR
    assert "No module named 'only_in_this_process'" in verdict.reason
    assert score(service, "process_id") == before


def test_a_machine_without_room_for_a_new_worker_costs_errors_until_it_has_room(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"

    async def crash_and_go_on(service: RewardService) -> tuple[Verdict, Verdict]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
        try:
            return await service.score(sample("segfault")), await service.score(sample("value", 1.0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with rewards(log) as service:
        crashed, after = asyncio.run(crash_and_go_on(service))
        assert "SIGSEGV" in crashed.reason
        assert after == Verdict.error("the machine has no room for another worker process of the reward")
        assert score(service, "value", 1.0).value == 1.0
    assert "no worker can be started: [Errno 24]" in log.read_text()


def test_a_reward_sees_the_tokens_and_not_what_is_the_trainer_s(service: RewardService) -> None:
    full = sample("sizes")
    full.segments = [Segment((), [1, 2, 3], [-0.1] * 3, [1] * 3, [WeightSpan(0, 3)])]
    full.segments[0].check()
    assert asyncio.run(service.score(full)).parts == {"tokens": 3.0, "logprobs": 0.0, "spans": 0.0}
    assert len(full.segments[0].logprobs) == 3


def test_a_large_sample_goes_through(service: RewardService) -> None:
    big = sample("value", 1.0)
    big.segments = [Segment((), list(range(300_000)))]
    assert asyncio.run(service.score(big)).value == 1.0


def test_close_is_prompt_and_ends_what_is_in_flight(tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"

    async def close_under_way(service: RewardService) -> list[Verdict]:
        flying = [asyncio.create_task(service.score(sample("hang_with_children", str(pid_file)))) for _ in range(2)]
        while not pid_file.exists() or len(pid_file.read_text().split()) < 3:
            await asyncio.sleep(0.01)
        service.close()
        return await asyncio.wait_for(asyncio.gather(*flying), GONE_WITHIN_S)

    service = rewards()
    service.start()
    verdicts = asyncio.run(close_under_way(service))
    assert verdicts == [Verdict.error("the reward service was closed")] * 2
    wait_until_gone([int(pid) for pid in pid_file.read_text().split()])
