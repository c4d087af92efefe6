"""One segment's requests, against answers that were written down; test_loop.py has it over HTTP."""

import asyncio
import string
from typing import NamedTuple

import pytest

from slime.config.schema import SamplingConfig
from slime.engine_client.client import Completion, FinishReason
from slime.sampling.generate import Generator, Passed
from slime.segments import Segment, WeightSpan
from slime.types import Status

END = 0


class Alphabet:
    """Token n is the n-th letter; token 27 is a special one, whose text a response does not show."""

    eos_token_id, name_or_path = END, ""

    def decode(self, tokens, skip_special_tokens):
        special = "" if skip_special_tokens else "<end>"
        return "".join(string.ascii_lowercase[token - 1] if token <= 26 else special for token in tokens if token)


class Answers:
    """Gives one (tokens, finish reason) after the other; weights are of one more version each time."""

    url = "http://engine"

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    async def generate(self, input_ids, sampling):
        self.requests.append((list(input_ids), sampling["max_new_tokens"]))
        tokens, reason = self.answers.pop(0)
        return Completion(tokens, [-float(token) for token in tokens], FinishReason(reason), len(self.requests), 0, 0)


class Response(NamedTuple):
    status: Status
    tokens: list[int]
    text: str
    spans: list[WeightSpan]


def response(*answers, stop=(), limit=9):
    engine = Answers(*answers)
    generator = Generator(engine, SamplingConfig(max_response_tokens=limit, stop=list(stop)), Alphabet())
    segment, status = Segment((9,)), Status.PENDING
    for version in range(1, len(answers) + 1):
        assert status in (Status.PENDING, Status.ABORTED), "what has ended is not continued"
        _, status = asyncio.run(generator.continue_response(segment, 0, limit, version, 5))
    segment.check()
    assert segment.logprobs == [-float(token) for token in segment.tokens]
    return Response(status, segment.tokens, generator.text(segment.tokens), segment.spans)


class CrossedGate:
    """Answers a request that was inside while weights of version 4 took the place of those of 3."""

    version, keeps_keys = 4, True

    async def generate(self, input_ids, sampling):
        completion = Completion([5, 6, 7], [-5.0, -6.0, -7.0], FinishReason.LENGTH, 4, 0, 0, earlier=[(3, 2)])
        return Passed(completion, 3)


def test_tokens_of_newer_weights_on_kept_keys_are_mixed_and_no_others():
    segment = Segment((9,))
    generator = Generator(Answers(), SamplingConfig(max_response_tokens=3), Alphabet(), CrossedGate())
    asyncio.run(generator.continue_response(segment, 0, 3, 4, 5))
    assert segment.spans == [WeightSpan(3, 2), WeightSpan(4, 1, is_mixed=True)]


def test_a_sequence_limit_ends_a_response_before_its_own():
    engine = Answers(([5, 6], "length"))
    generator = Generator(engine, SamplingConfig(max_response_tokens=9, max_sequence_tokens=5), Alphabet())
    segment = Segment((9, 9, 9))
    limit = generator.limit(segment.context)
    _, status = asyncio.run(generator.continue_response(segment, 0, limit, 1, 5))
    assert engine.requests == [([9, 9, 9], 2)]
    assert status is Status.TRUNCATED


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_nothing_behind_the_first_end_token_stays(reason):
    """A drafting model's step brings several tokens, and SGLang looks for an abort and for the length first."""
    sample = response(([5, 6, END, 7], reason))
    assert (sample.status, sample.tokens, sample.text) == (Status.COMPLETED, [5, 6, END], "ef")


@pytest.mark.parametrize("tokens", [[1] * 12, [1] * 10 + [END]])
def test_a_response_has_no_more_tokens_than_its_limit(tokens):
    """Of an aborted request SGLang returns all that the last step brought; it could not be continued."""
    sample = response(([1] * 4, "abort"), (tokens, "abort"), limit=9)
    assert (sample.status, sample.tokens) == (Status.TRUNCATED, [1] * 9)


def test_an_end_token_behind_the_limit_of_a_step_still_ends():
    sample = response(([5, END, 7], "length"), limit=3)
    assert (sample.status, sample.tokens) == (Status.COMPLETED, [5, END])


@pytest.mark.parametrize("reason", ["stop", "length", "abort"])
def test_nothing_behind_the_first_stop_string_stays(reason):
    sample = response(([1, 2, 3, 4, 2, 3], reason), stop=["bc", "d"])
    assert (sample.status, sample.text) == (Status.COMPLETED, "abc")


def test_a_stop_string_that_an_abort_splits_ends_the_response():
    sample = response(([1, 2], "abort"), ([3, 4, 5], "stop"), stop=["bc"])
    assert (sample.status, sample.text) == (Status.COMPLETED, "abc")
    assert sample.spans == [WeightSpan(1, 2), WeightSpan(2, 1)]


def test_the_earlier_of_end_token_and_stop_string_ends_the_response():
    assert response(([1, END, 2, 3], "stop"), stop=["c"]).tokens == [1, END]
    assert response(([1, 3, 2, END], "stop"), stop=["c"]).tokens == [1, 3]


def test_a_stop_string_may_be_the_text_of_a_special_token():
    sample = response(([1, 27, 2], "abort"), stop=["<end>"])
    assert (sample.status, sample.tokens, sample.text) == (Status.COMPLETED, [1, 27], "a")


def test_an_abort_before_the_first_token_adds_nothing():
    sample = response(([], "abort"), stop=["bc"])
    assert (sample.status, sample.spans) == (Status.ABORTED, [])


def test_what_is_left_of_the_limit_is_asked_for():
    engine = Answers(([1] * 5, "abort"), ([1] * 4, "length"))
    generator = Generator(engine, SamplingConfig(max_response_tokens=9), Alphabet())
    segment = Segment((9,))
    asyncio.run(generator.continue_response(segment, 0, 9, 1, 5))
    _, status = asyncio.run(generator.continue_response(segment, 0, 9, 2, 5))
    assert engine.requests == [([9], 9), ([9, 1, 1, 1, 1, 1], 4)]
    assert status is Status.TRUNCATED
