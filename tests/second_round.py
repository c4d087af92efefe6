"""Run the tests that failed once more, alone, and tell which are flaky.

    python -m pytest --numprocesses 3 --report-log .reports.jsonl
    python tests/second_round.py .reports.jsonl

They run in one process, when all others have ended. What passes then is printed as flaky, with both outputs, and does
not fail: exits with 0. Exits with 1 where a test fails again or is not run, where modules cannot be imported, and where
tests of more than `MOST` files failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

MOST = 10
"""More files with failed tests than this are no flakes. Files are counted, as one fault can fail all tests of one."""
SECONDS = 600
"""No further test begins after so long. A test has its own limit, so this bounds the second round."""


class Session(NamedTuple):
    """What the log of a session of pytest tells.

    Attributes:
        reports: of each test, by its id without xdist's group: of its set-up, its call and its teardown.
        errors: modules and folders that could not be collected.
        code: the exit code, None where the session did not come to its end.
    """

    reports: dict[str, list[pytest.TestReport]]
    errors: list[str]
    code: int | None

    @classmethod
    def read(cls, log: Path) -> Session:
        reports, errors, code = defaultdict[str, list[pytest.TestReport]](list), [], None
        for line in log.read_text().splitlines() if log.exists() else []:
            told = json.loads(line)
            told.pop("node", None)  # xdist's handle of a process, of which the log has a name alone
            if "when" in told and "nodeid" in told:
                reports[without_group(told["nodeid"])].append(pytest.TestReport._from_json(told))
            elif told.get("outcome") == "failed":
                errors.append(told["nodeid"])
            code = told.get("exitstatus", code)
        return cls(dict(reports), errors, code)

    def failed(self) -> list[str]:
        return [name for name, reports in self.reports.items() if any(report.failed for report in reports)]

    def passed(self) -> list[str]:
        """Tests that ran to their end and of which nothing failed; skipped ones are not among them."""
        return [
            name
            for name, reports in self.reports.items()
            if not any(report.failed for report in reports)
            and {"call", "teardown"} <= {report.when for report in reports if report.passed}
        ]


def without_group(name: str) -> str:
    """`a.py::b[c]` of `a.py::b[c]@group`, which is how xdist names a test of a group."""
    at = name.rfind("@")
    return name[:at] if at > max(name.rfind("]"), name.rfind("::")) else name


def refusal(first: Session) -> str:
    """Why nothing runs once more although the session did not succeed; empty where tests do."""
    if first.code is None:
        return "the tests did not come to their end: see above"
    if first.errors:
        return f"not collected, so nothing runs once more: {', '.join(first.errors)}"
    if first.code != pytest.ExitCode.TESTS_FAILED or not first.failed():
        return f"pytest ended with exit code {first.code}, and not for a test that failed: see above"
    files = {name.partition("::")[0] for name in first.failed()}
    if len(files) > MOST:
        return f"tests of {len(files)} files failed: more than {MOST} are no flakes, and none runs once more"
    return ""


def run_alone(names: Sequence[str]) -> Session:
    """Run these tests in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        arguments, log = Path(folder) / "arguments", Path(folder) / "reports.jsonl"
        arguments.write_text("\n".join(names))  # a name may hold what a shell or an option would take for its own
        limit = ["--session-timeout", str(SECONDS)]
        words = [sys.executable, "-m", "pytest", *limit, "--report-log", str(log), f"@{arguments}"]
        # What ran once may run again, also where no further slow test was to begin (conftest.py).
        subprocess.run(words, env={name: value for name, value in os.environ.items() if name != "SLOW_TESTS_UNTIL"})
        return Session.read(log)


def output(reports: Sequence[pytest.TestReport]) -> str:
    """How a test ended, what failed in it, and all that was captured."""
    outcomes = {report.outcome for report in reports}
    if not any(report.when == "teardown" for report in reports):
        outcomes = {*outcomes - {"passed"}, "not ended"}
    outcome = next(each for each in ("failed", "not ended", "skipped", "passed") if each in outcomes)
    failures = [f"{report.when}: {report.longreprtext}" for report in reports if report.longreprtext]
    captured = dict(section for report in reports for section in report.sections)
    return "\n".join([outcome, *failures, *(f"--- {title}\n{text.rstrip()}" for title, text in captured.items())])


def main() -> int:
    """Judge the session whose log is named, and run again what failed in it."""
    first = Session.read(Path(sys.argv[1]))
    if first.code == pytest.ExitCode.OK:
        return 0
    if why := refusal(first):
        print(why, file=sys.stderr)
        return 1
    failed = first.failed()
    print(f"\n{len(failed)} failed: once more, alone", flush=True)
    again = run_alone(failed)
    healthy = again.passed()
    flaky, broken = [[name for name in failed if (name in healthy) == passes] for passes in (True, False)]
    for title, names in (("FAILED", broken), ("FLAKY", flaky)):
        for name in names:
            print(f"\n{title}: {name}")
            print(f"=== the first time: {output(first.reports[name])}")
            print(f"=== once more, alone: {output(again.reports.get(name, []))}")
    # Who looks for the last count of a log would find that of the second round alone.
    both = f"{len(first.passed()) + len(flaky)} passed, counted over both rounds"
    print(f"\n{len(broken)} failed, {both}" if broken else f"\n{both}")
    if flaky:
        print(f"{len(flaky)} flaky tests: mend them first")
    if not broken and again.code != pytest.ExitCode.OK:
        print(f"the second round ended with exit code {again.code}: see above", file=sys.stderr)
    return int(bool(broken) or again.code != pytest.ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
