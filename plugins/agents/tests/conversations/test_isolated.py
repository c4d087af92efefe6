"""Programs in worker processes: whatever one does costs its attempt, and no other."""

from __future__ import annotations

import time

import psutil
import pytest

from slime import plugins
from slime.config.schema import ProgramConfig
from slime.sampling.buffer import FifoBuffer
from slime.sampling.programs import opened
from slime.types import Status, Verdict
from slime_agents.conversations.isolated import Isolated
from tests.running import command_of
from tests.sampling import faulty
from tests.sampling.test_program_faults import collect  # noqa: F401 because a fixture is found by its name
from tests.waiting import until

FAULTS = ("raises", "hangs", "vanishes", "floods", "forks")
LIMIT_S = 5.0
"""What hangs takes it; a worker of a sound program, or of one that forks, has no core for a part of it."""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Opens the faulty program; it is closed after the test."""
    site = tmp_path / "site"
    site.mkdir()
    faulty.install(site)
    monkeypatch.syspath_prepend(str(site))
    plugins.load.cache_clear()
    open_now = []

    def run(faults, **keys):
        cfg = ProgramConfig("faulty", {"faults": faults, "folder": str(tmp_path)}, **{"memory_mb": 256} | keys)
        open_now.append(opened(cfg, tmp_path / "program.log"))
        return open_now[-1].__enter__()

    yield run
    for each in open_now:
        each.__exit__(None, None, None)
    plugins.load.cache_clear()
    until(lambda: workers() == [], told=workers)


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "guarded_workers" in command_of(child)]


@pytest.mark.slow
def test_with_faults_of_each_kind_no_group_is_lost_or_mis_scored(collect, program):  # noqa: F811
    faults = {str(20 * place): name for place, name in enumerate(FAULTS)}
    in_workers = program(faults, num_workers=12)
    collected, _ = collect(
        in_workers, timeout_s=LIMIT_S, prompts_per_step=100, samples_per_prompt=4, max_requests_per_engine=12
    )
    samples = [sample for group in collected.groups for sample in group.samples]
    failed = [sample for sample in samples if sample.status is Status.FAILED]
    assert len(samples) == 400
    wrong = {sample.prompt.id.partition("/")[2]: (sample.index, sample.verdict.reason) for sample in failed}
    assert sorted(wrong) == sorted(faults), wrong
    assert all(index == 1 for index, _ in wrong.values())
    assert all(sample.reward == sample.index % 2 for sample in samples if sample not in failed)
    said = {faults[number]: reason.partition(" (")[0] for number, (_, reason) in wrong.items()}
    assert said["raises"] == "the program raised ValueError: no more"
    assert said["hangs"] == f"the program did not end within {LIMIT_S:g} s of its own"
    assert said["vanishes"] == "the program's process exited with code 3"
    assert said["floods"] == "MemoryError: the program grew by more than rollout.program.memory_mb=256 MiB"
    assert said["forks"] == "the program ran more than 100 processes at a time"
    assert (collected.stats["rollout/reward_timeout"], collected.stats["rollout/reward_error"]) == (1, 4)


OTHERS = {
    "exits": "the program raised SystemExit: 3",
    "crashes": "the program's process was killed by SIGSEGV",
    "blocks": f"the program did not end within {LIMIT_S:g} s of its own",
    "tells_no_json": "Object of type object is not JSON serializable",
    "forges": "the program returned a Verdict with value=nan",
}


def test_other_faults_cost_their_attempt_too(collect, program):  # noqa: F811
    """One a prompt, and prompts without, since most samples must have a reward: what each of them says, and that all
    other attempts have their own rewards."""
    in_workers = program({str(number): fault for number, fault in enumerate(OTHERS)}, num_workers=2)
    collected, _ = collect(in_workers, timeout_s=LIMIT_S, prompts_per_step=20, samples_per_prompt=3)
    samples = [sample for group in collected.groups for sample in group.samples]
    by_number = {(sample.prompt.id.partition("/")[2], sample.index): sample for sample in samples}
    bad = {fault: by_number.pop((str(number), 1)) for number, fault in enumerate(OTHERS)}
    assert {fault: sample.verdict.reason[: len(OTHERS[fault])] for fault, sample in bad.items()} == OTHERS
    assert all(sample.reward is None for sample in bad.values())
    assert len(by_number) == 60 - len(OTHERS)
    assert all(sample.reward == sample.index % 2 for sample in by_number.values())


def test_a_worker_that_is_lost_costs_nothing(collect, program):  # noqa: F811
    collected, _ = collect(program({"0": "loses_its_worker"}), prompts_per_step=2)
    assert [sample.reward for group in collected.groups for sample in group.samples] == [0, 1] * 2


def test_what_a_program_may_ask_it_may_ask_from_a_worker(collect, program):  # noqa: F811
    collected, _ = collect(program({"0": "asks_at_once"}), prompts_per_step=1)
    [group] = collected.groups
    assert group.samples[1].verdict == Verdict.of(3.0)
    assert len(group.samples[1].segments) == 5
    assert group.samples[1].metadata == {"asked": 3.0}


def test_what_an_engine_was_asked_for_is_the_beginning_of_a_segment(collect, program):  # noqa: F811
    collected, engine = collect(program({}), prompts_per_step=2)
    segments = [segment for group in collected.groups for sample in group.samples for segment in sample.segments]
    whole = [[*segment.context, *segment.tokens] for segment in segments]
    assert len(engine.requests) == 8
    assert all(any(ids == each[: len(ids)] for each in whole) for ids in engine.requests)


def test_what_hangs_when_a_step_has_enough_ends_and_begins_again(collect, program):  # noqa: F811
    buffer, start = FifoBuffer(), time.monotonic()
    in_workers = program({"1": "blocks"})
    collected, _ = collect(in_workers, prompts_per_step=1, over_sampling=2.0, buffer=buffer)
    assert [group.id for group in collected.groups] == ["0/0"]
    [waiting] = buffer.take(9, 2)
    assert waiting.samples[1].status is Status.PENDING
    # On a busy machine it may not hang yet, and wait for its first answer.
    assert not any(segment.tokens for segment in waiting.samples[1].segments)
    assert time.monotonic() - start < 30


def test_only_what_says_so_runs_in_the_driver(program):
    assert isinstance(program({}), Isolated)
    with opened(ProgramConfig()) as single:
        assert not isinstance(single, Isolated)
