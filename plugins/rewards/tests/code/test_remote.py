"""The reward `code` with a server that runs the programs, which is this machine's sandbox."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from plugins.rewards.tests.code.escapes import TRY_ALL, victim
from plugins.rewards.tests.code.test_code import ADD, ADDS, ASSERTED, CALLED, READS, verdict
from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.types import VerdictKind
from slime_rewards.code import remote, sandbox
from slime_rewards.code.sandbox import NotRunError, Spec
from slime_rewards.code.serve import SandboxServer
from slime_rewards.general import remote as asked

needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


@contextmanager
def served(server: ThreadingHTTPServer):
    """Its URL."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def url():
    with served(SandboxServer(("127.0.0.1", 0), memory_mb=256)) as url:
        yield url


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "label", "value"),
    [(READS, ADD, 1), (ADDS, CALLED, 1), (ADDS, json.dumps(ASSERTED), 1), ("print(7)", ADD, 0),
     ("def add(a, b): print(7)", CALLED, 0), ("import os; os._exit(0)", CALLED, 0), ("x = (", CALLED, 0),
     ("class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()", CALLED, 0)],
)  # fmt: skip
def test_a_server_s_verdicts_are_those_of_this_machine(url, code, label, value):
    found = verdict(code, label, sandbox=url)
    assert found == verdict(code, label)
    assert found.value == value


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "fault"),
    [("while True: pass", "it took more than 6 s"), ("import time; time.sleep(60)", "it took more than 6 s"),
     ("x = bytearray(4 << 30)", "it ended with 1")],
)  # fmt: skip
def test_a_program_that_takes_too_much_ends(url, code, fault):
    for _ in range(5):
        with suppress(NotRunError):  # a machine that is too busy says nothing of a program
            assert remote.run(url, Spec(code, cpu_s=1)).fault == fault
            return
    pytest.fail("five times the machine was too busy for it")


@needs_sandbox
def test_no_program_escapes_at_the_server(url):
    with victim() as (codes, harm):
        said = json.loads(remote.run(url, Spec(TRY_ALL.format(codes=codes))).output)
        assert [name for name, text in said.items() if not text.startswith("refused")] == []
        assert said.keys() == codes.keys()
        assert harm() == []


@needs_sandbox
@pytest.mark.parametrize("body", [{"code": "1", "language": "cpp"}, {"language": "python"}, [], {"code": "1",
                         "language": "python", "run_timeout": 0}])  # fmt: skip
def test_what_it_does_not_run_is_refused(url, body):
    with pytest.raises(asked.ServerError, match="422"):
        asked.post(f"{url}/run_code", body, {}, timeout_s=60, tries=1)


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "SandboxError", "message": "no room", "run_result": None},
        {"status": "Success", "run_result": {"status": "Finished?", "return_code": 0, "stdout": "7"}},
        {"status": "Success", "run_result": None},
        ["Success"],
    ],
)
def test_a_server_that_fails_is_an_error_and_never_a_0(answer):
    class Fails(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_) -> None: ...

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Fails)) as url:
        found = verdict(ADDS, CALLED, sandbox=url)
    assert found.kind is VerdictKind.ERROR
    assert url in found.reason


def test_a_server_that_is_away_is_an_error(monkeypatch):
    monkeypatch.setattr(asked, "_FIRST_WAIT_S", 0.01)
    found = verdict(ADDS, CALLED, sandbox="http://127.0.0.1:9")
    assert found.kind is VerdictKind.ERROR
    assert "tried 3 times" in found.reason


def test_a_server_that_cannot_confine_runs_nothing(monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has no Landlock")
    with served(SandboxServer(("127.0.0.1", 0))) as url, pytest.raises(NotRunError, match="the kernel has no Landlock"):
        remote.run(url, Spec("print(1)"))


def test_a_run_with_a_server_needs_no_sandbox_here(monkeypatch):
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has no Landlock")
    data = Path(__file__).with_name("data") / "problems.jsonl"
    words = ["+model=glm4-tiny", "+cluster=local", "reward.name=code", f"data.path={data}", "eval.path=null"]
    with pytest.raises(SlimeError, match=r"reward\.options\.sandbox=http://HOST:8080 runs programs at a server"):
        compose(words)
    assert compose([*words, "reward.options.sandbox=https://there"]).reward.options["sandbox"] == "https://there"
    with pytest.raises(SlimeError, match="is neither local nor a URL"):
        compose([*words, "reward.options.sandbox=remote"])
