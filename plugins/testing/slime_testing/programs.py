"""The contract test of a program, to be called from a plugin's own tests.

from slime_testing.programs import ProgramCase, check_program
from slime.types import Turn

def test_contract() -> None:
    check_program("retry", [ProgramCase([Turn("1, 2, 3, 4", "length"), Turn("24", "stop")], "24")])
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime import plugins
from slime.config.schema import SamplingConfig
from slime.contracts import Program
from slime.engine_client.client import Completion, EngineGone, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator, sampling_seed
from slime.types import Prompt, Sample, Status, Turn, Verdict
from slime_testing.plugins import Options, check_light, check_refuses_unknown, typed_options

SEED, VERSION = 5, 1
END = 0
"""The end token; every other token is a letter."""


@dataclass(frozen=True)
class ProgramCase:
    """What the model answers, one response after the other, and what must come of it.

    Attributes:
        responses: at least as many as the program asks for, none of them empty.
        response: text of the sample in the end.
        verdict: what the program says of it; None: the run's reward judges.
        label, metadata: of the prompt.
    """

    responses: Sequence[Turn]
    response: str
    verdict: Verdict | None = None
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


def check_program(name: str, cases: Sequence[ProgramCase], options: Options | None = None) -> None:
    """Assert that program `name` is well installed and makes attempts as expected, twice alike.

    Each case is also played with an abort in the middle of each response, after which the program is run again, and
    with an engine that is gone at each, which must end the run.

    Args:
        cases: at least one.
        options: `rollout.program.options` of the run; the plugin's schema must know and type them.

    Raises:
        AssertionError: a part of the contract is broken; says which.
    """
    assert cases, "a contract test needs a case"
    registry = plugins.load().programs
    check_light(registry.get(name))
    typed = typed_options(f"program/{name}", options or {})
    check_refuses_unknown(registry, name, typed)
    program = registry.create(name, **typed)
    assert isinstance(program, Program), f"program '{name}' has not the method of slime.contracts.Program"
    for case in cases:
        model = _Model(case)
        _check(program, model, f"{case}")
        _check(program, _Model(case), f"{case}, the second time")
        for number in range(model.num_asked):
            _check(program, _Model(case, aborts_at=number), f"{case}, after an abort in response {number}")
            _check_fault(program, case, number)


def _played(program: Program, model: _Model) -> Sample:
    """The attempt, run again after an abort as a later step does."""
    sample = Sample(model.prompt, 0)
    generator = Generator(EngineSet([model]), SamplingConfig(max_response_tokens=model.limit), _Letters())
    if not asyncio.run(Attempts(program, generator, SEED, VERSION).run(sample)):
        assert asyncio.run(Attempts(program, generator, SEED, VERSION).run(sample)), "an abort had no end"
    return sample


def _check(program: Program, model: _Model, when: str) -> None:
    sample = _played(program, model)
    for segment in sample.segments:
        segment.check()
    assert sample.status is not Status.FAILED, f"{when}: {sample.verdict}"
    assert sample.response == model.case.response, f"{when}: the sample is {sample.response!r}"
    assert sample.verdict == model.case.verdict, f"{when}: the verdict is {sample.verdict}"


def _check_fault(program: Program, case: ProgramCase, number: int) -> None:
    try:
        _played(program, _Model(case, dies_at=number))
    except EngineGone:
        return
    raise AssertionError(f"{case}: the engine was gone at response {number}, and nobody was told")


class _Letters:
    """A tokenizer of one letter a token."""

    eos_token_id, name_or_path = END, ""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(token) for token in tokens if token != END)


class _Model:
    """An engine that answers with the responses of a case.

    Args:
        aborts_at, dies_at: number of the response in which it is told to abort, once, and at which it is gone.
    """

    url, num_generating = "the engine of the contract test", 1

    def __init__(self, case: ProgramCase, *, aborts_at: int | None = None, dies_at: int | None = None) -> None:
        assert all(turn.text for turn in case.responses), "a response of a case is not empty"
        self.prompt = Prompt("0/0", (), (1,), case.label, case.metadata)
        self.limit = 1 + max(len(turn.text) for turn in case.responses)
        self.num_asked = 0
        self.case, self._aborts_at, self._dies_at = case, aborts_at, dies_at

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        seeds = [sampling_seed(SEED, Sample(self.prompt, 0), number) for number in range(len(self.case.responses))]
        assert sampling["sampling_seed"] in seeds, f"asks for more than {len(seeds)} responses"
        number = seeds.index(sampling["sampling_seed"])
        self.num_asked = max(self.num_asked, number + 1)
        if number == self._dies_at:
            raise EngineGone("is gone", where=self.url, todo="See its log.")
        turn = self.case.responses[number]
        tokens, reason = [*map(ord, turn.text)], FinishReason.LENGTH
        if turn.finish == "stop":
            tokens, reason = [*tokens, END], FinishReason.STOP
        tokens = tokens[len(input_ids) - len(self.prompt.tokens) :]
        if number == self._aborts_at:
            self._aborts_at = None
            tokens, reason = tokens[: len(tokens) // 2], FinishReason.ABORT
        return Completion(tokens, [-0.5] * len(tokens), reason, VERSION, 0, 0)

    async def abort_all(self) -> None:
        """There is no other request."""

    async def flush_cache(self) -> None:
        """There is no cache."""

    async def load(self) -> tuple[int, int]:
        return 0, 0
