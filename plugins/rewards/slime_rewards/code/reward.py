"""Reward `code`: Python in the answer against the tests of the label.

Forms of labels: `slime_rewards.code.labels`. Of programs: `slime_rewards.code.programs`. Values are compared out of the
program's reach: an object that says to equal everything equals nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.reward.deadline import seconds_left
from slime.thinking import said
from slime.types import Sample, Status, Verdict
from slime_rewards.code.asserts import Case
from slime_rewards.code.compare import same_text, same_value
from slime_rewards.code.labels import cases_of
from slime_rewards.code.programs import Program, program_of

if TYPE_CHECKING:
    from slime_rewards.code.sandbox import Ended

LOCAL = "local"
_OF_TIMEOUT = 0.8
"""Share of `reward.timeout_s` in which all programs of an answer end. The rest is for starts and ends of processes."""


@dataclass
class CodeReward:
    label_is_answer = False  # for `slime check-reward`
    partial: bool = False
    """The reward is the share of tests that the program passes; else 1 if it passes all."""
    cpu_s: int = 5
    """Seconds of processor time for a test."""
    memory_mb: int = 512
    """MiB by which the program may grow."""
    max_tests: int = 20
    """The first tests of a row that are run."""
    sandbox: str = LOCAL
    """Where programs run: `local`, or the URL of a server of SandboxFusion's form, which bounds their memory itself."""
    unconfined: bool = False
    """Run programs on a machine that cannot confine them. They may then do all that this user may."""

    def score(self, sample: Sample) -> Verdict:
        from slime_rewards.code.sandbox import NotRunError  # here, because importing a plugin is to be quick

        try:
            cases = cases_of(sample.prompt.label)[: self.max_tests]
        except ValueError as problem:
            return Verdict.invalid(f"row {sample.prompt.id}: the label has no tests: {problem}")
        names = list(dict.fromkeys(name for case in cases for name in case.names))
        program = program_of(said(sample), names, is_cut=sample.status is Status.TRUNCATED)
        if program is None:
            return Verdict.of(0.0, tests_passed=0.0, no_program=1.0, crashed=0.0, out_of_time=0.0)
        passed, is_late, crashed, ends = 0, False, False, time.monotonic() + _OF_TIMEOUT * seconds_left()
        try:
            for number, case in enumerate(cases):
                if not self.partial and passed < number:
                    break
                if (left := ends - time.monotonic()) <= 0:
                    is_late = True
                    break
                ended = self._run(program, case, left)
                is_late |= ended.is_late
                crashed |= bool(ended.fault) and not ended.is_late
                passed += not ended.fault and _is_right(ended, case)
        except NotRunError as why:
            return Verdict.error(f"the program was not run: {why}")
        share = passed / len(cases)
        value = share if self.partial else float(share == 1)
        parts = {"tests_passed": share, "no_program": 0.0, "crashed": crashed, "out_of_time": is_late}
        return Verdict.of(value, **{name: float(part) for name, part in parts.items()})

    def _run(self, program: Program, case: Case, most_s: float) -> Ended:
        from slime_rewards.code import remote, sandbox

        spec = sandbox.Spec(
            program.code,
            case.call,
            before="\n".join(filter(None, (program.before, case.setup))),
            names=case.names,
            prefers_methods=case.of_json,
            cpu_s=self.cpu_s,
            memory_mb=self.memory_mb,
            unconfined=self.unconfined,
            most_s=most_s,
        )
        local = self.sandbox == LOCAL
        return sandbox.run(spec, case.given) if local else remote.run(self.sandbox, spec, case.given)


def _is_right(ended: Ended, case: Case) -> bool:
    if case.call is None:
        return same_text(ended.output, case.wanted)
    wanted = [case.wanted, *case.inner]
    return any(same_value(ended.output, each, of_json=case.of_json, within=case.within) for each in wanted)
