"""Programs that make the attempts: what the loop does with one of somebody else's, and with one that is wrong."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from slime import plugins
from slime.builtins import Single
from slime.compose.compose import compose
from slime.contracts import Program
from slime.errors import SlimeError
from slime.imports import import_file
from slime.sampling.buffer import FifoBuffer
from slime.types import Status, Task, Turn, Verdict
from slime_testing.programs import ProgramCase, check_program
from tests.engine_client.scripted_engine import ScriptedEngine, answer

from .scripted_rollout import VERSION, run

RETRY = Path(__file__).parents[1] / "third_party/retry"
PAGE = RETRY.parents[2] / "docs/writing-a-program.md"
LIMIT = 6


class Reason(Exception):
    """Why a program of these tests raised."""


class Always:
    """Does the same in each attempt."""

    def __init__(self, does):
        self.does, self.tasks = does, []

    async def run(self, task, model):
        self.tasks.append(task)
        return await self.does(model)


@pytest.fixture
def retry(site):
    """The third-party program, installed."""
    site.add_project({str(file.relative_to(RETRY)): file.read_text() for file in RETRY.rglob("*.*") if file.is_file()})
    return plugins.load().programs.create("retry")


def samples(collected):
    return [sample for group in collected.groups for sample in group.samples]


def test_a_third_party_program_is_chosen_by_name_and_its_options_are_checked(retry):
    words = ("+model=glm4-tiny", "+cluster=local", "rollout.program.name=retry")
    assert compose(words).rollout.program.options == {"times": 1, "give_up": False}
    assert compose([*words, "rollout.program.options.times=3"]).rollout.program.options["times"] == 3
    with pytest.raises(SlimeError, match=r"rollout\.program\.options\.tims: .* no such option\. Did you mean 'times'"):
        compose([*words, "rollout.program.options.tims=3"])
    with pytest.raises(SlimeError, match=r"no program named 'retyr' is installed\. Did you mean 'retry'"):
        compose([*words[:2], "rollout.program.name=retyr"])


def test_the_third_party_program_keeps_its_contract(retry):
    tests = import_file(RETRY / "tests/test_retry.py", "retry_tests")
    for test in (tests.test_contract, tests.test_how_often_is_an_option, tests.test_what_gives_up_judges_itself):
        test()


def test_what_the_page_shows_of_the_third_party_program_is_in_it():
    source = [line.strip() for line in (RETRY / "slime_retry/__init__.py").read_text().splitlines()]
    shown = [line.strip() for line in PAGE.read_text().split("```python\n")[1].partition("```")[0].splitlines()]
    assert len(shown) > 10
    assert [line for line in shown if line not in source] == []


def test_the_command_of_the_page_is_right(retry):
    (line,) = re.findall(r"^    slime (.*)$", PAGE.read_text(), re.M)
    assert compose(line.split()).rollout.program.options["times"] == 2


def test_the_contract_holds_for_single():
    check_program(
        "single", [ProgramCase([Turn("85", "stop")], "85"), ProgramCase([Turn("70 and", "length")], "70 and")]
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class P:\n    def run(self): ...", "the program raised TypeError"),
        ("class P:\n    async def run(self, task, model): ...", "ended without a response"),
        ("class P:\n    async def run(self, task, model):\n        await model.respond(); return 1.0", "gave 1.0"),
        ("class P:\n    pass", "has not the method"),
        ("def P(**options):\n    pass", "takes options it does not know"),
        (
            "class P:\n    n = 0\n    async def run(self, task, model):\n        P.n += 1\n"
            "        for _ in range(P.n): await model.respond()",
            "the second time",
        ),
    ],
)
def test_the_contract_test_finds_what_is_wrong(site, source, words):
    site.add("slime-wrong", f"{source}\n@hookimpl\ndef slime_programs():\n    return {{'wrong': P}}\n")
    with pytest.raises(AssertionError, match=words):
        check_program("wrong", [ProgramCase([Turn("8", "stop"), Turn("9", "stop")], "8")])


class SwallowsFaults:
    async def run(self, task, model):
        try:
            await model.respond()
        except SlimeError:
            return Verdict.of(0.0)
        return None


def test_a_program_that_catches_an_engine_s_fault_does_not_hide_it():
    engine = ScriptedEngine()
    engine.dies_after = 0
    with pytest.raises(SlimeError, match="no answer to /generate"):
        run(engine, program=SwallowsFaults(), prompts_per_step=1)


def test_a_response_begins_again_with_noise_of_its_own_and_takes_the_place_of_the_one_before(retry):
    engine = ScriptedEngine({0: 3, 1: 9, 2: 3, 3: 3})
    (collected,) = run(engine, program=retry, max_response_tokens=LIMIT)
    asked = [(request["input_ids"], request["sampling_params"]["sampling_seed"]) for request in engine.requests]
    assert len(asked) == len(set(map(repr, asked))) == 4 * 2 + 2
    assert all(len(input_ids) == 1 for input_ids, _ in asked), "nothing goes on from the response before"
    for sample in samples(collected):
        number = sample.prompt.label
        length = 6 if number == 1 else 3
        assert sample.num_sampled == length
        assert sample.segments[0].tokens[:2] == [answer(number, 0), answer(number, 1)]
        assert sample.status is (Status.TRUNCATED if number == 1 else Status.COMPLETED)
        sample.segments[0].check()
    assert collected.stats["rollout/num_tokens"] == 3 * 2 * 3 + 2 * 2 * 6


def test_a_verdict_of_the_program_s_own_takes_the_place_of_the_reward_s(site, retry):
    retry.give_up = True
    engine = ScriptedEngine({0: 9, 1: 3})
    (collected,) = run(engine, program=retry, prompts_per_step=2, max_response_tokens=LIMIT)
    rewards = [sample.reward for sample in samples(collected)]
    assert rewards == [0.0, 0.0, 0.0, 1.0], "the scripted reward gives 0 and 1"


def test_a_task_says_which_attempt_it_is():
    program = Always(ask_once)
    run(ScriptedEngine(), program=program, prompts_per_step=2)
    asked = [(task.prompt.id, task.attempt, task.is_evaluation) for task in program.tasks]
    assert asked == [(f"0/{number}", index, False) for number in range(2) for index in range(2)]
    assert len({task.seed for task in program.tasks}) == 4
    assert isinstance(program, Program)
    assert isinstance(program.tasks[0], Task)


async def ask_once(model):
    await model.respond()


async def raise_at_once(model):
    raise Reason("no more")


async def raise_afterwards(model):
    await model.respond()
    raise Reason("no more")


async def say_nothing(model):
    return Verdict.of(1.0)


async def say_a_number(model):
    await model.respond()
    return 0.5


async def ask_twice_at_once(model):
    await asyncio.gather(model.respond(), model.respond())


@pytest.mark.parametrize(
    ("does", "words"),
    [
        (raise_at_once, r"the program raised Reason: no more \(test_programs.py:\d+ in raise_at_once"),
        (raise_afterwards, r"the program raised Reason: no more"),
        (say_nothing, "the program ended without a response"),
        (say_a_number, "the program gave 0.5, not a Verdict or None"),
        (ask_twice_at_once, r"respond\(\) was called before it had returned"),
    ],
)
def test_a_program_at_fault_costs_its_sample_and_is_never_a_0(does, words):
    """With too many such samples the run stops and says why."""
    (collected,) = run(ScriptedEngine(), program=Sometimes(does), prompts_per_step=1, samples_per_prompt=4,
                       max_failed_share=0.3)  # fmt: skip
    failed = [sample for sample in samples(collected) if sample.status is Status.FAILED]
    assert [(sample.index, sample.reward, sample.verdict.kind) for sample in failed] == [(1, None, "error")]
    assert collected.stats["rollout/reward_error"] == 1
    assert collected.stats["rollout/reward_mean"] == 1 / 3
    with pytest.raises(SlimeError, match=words):
        run(ScriptedEngine(), program=Always(does), prompts_per_step=1)


class Sometimes(Single):
    """Does something else in attempt 1."""

    def __init__(self, does):
        self.does = does

    async def run(self, task, model):
        return await (self.does(model) if task.attempt == 1 else super().run(task, model))


def test_an_attempt_that_failed_is_made_again_when_its_group_comes_out_of_the_buffer():
    buffer = FifoBuffer()
    with pytest.raises(SlimeError, match="no more"):
        run(ScriptedEngine(), program=Sometimes(raise_afterwards), buffer=buffer, prompts_per_step=1)
    (group,) = buffer.take(9, VERSION)
    assert [(sample.status, sample.segments) for sample in group.samples][1] == (Status.PENDING, [])


def test_an_abort_begins_a_second_response_again_and_keeps_what_is_left_of_a_first_one(retry):
    """Prompt 0 is done soon; the others are aborted: 1 within its first response, 2 within its second."""
    engine = ScriptedEngine({0: 3, 1: 5, 2: 60}, {0: 0.05, 1: 0.08, 2: 0.02})
    buffer = FifoBuffer()
    run(engine, program=retry, buffer=buffer, prompts_per_step=1, over_sampling=3.0,
        max_response_tokens=LIMIT)  # fmt: skip
    kept = {group.id: [(sample.status, sample.num_sampled) for sample in group.samples]
            for group in buffer.take(9, VERSION)}  # fmt: skip
    assert {status for status, _ in kept["0/1"]} == {Status.ABORTED}
    assert all(0 < count < 5 for _, count in kept["0/1"])
    assert kept["0/2"] == [(Status.PENDING, 0)] * 2
