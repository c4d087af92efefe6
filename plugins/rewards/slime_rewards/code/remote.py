"""Runs a program at a server of SandboxFusion's form: `POST URL/run_code`."""

from __future__ import annotations

from typing import Any

from slime_rewards.code.sandbox import Ended, NotRunError, Spec, called_source
from slime_rewards.general.remote import ServerError, post

_SLACK_S = 30.0
"""Seconds beside the program's own: it may wait for its turn at the server."""
_TRIES = 3
_WITH_CALL = """import sys
said, sys.stdout = sys.stdout, sys.stderr  # what it prints is not its value
sys.modules["answer"] = program = type(sys)("answer")
exec({before!r}, vars(program))
called = {{"__name__": "called"}}
exec({called!r}, called)
said.write(called["run"](vars(program), {code!r}, {call!r}, {names!r}, {prefers_methods!r}))
said.flush()
"""
_WITHOUT = """{before}
exec(compile({code!r}, "answer.py", "exec"))
"""


def run(url: str, spec: Spec, given: str = "") -> Ended:
    """Do what `slime_rewards.code.sandbox.run` does, at a server, whose own settings bound the memory.

    Args:
        url: without `/run_code`.
        spec: whose `wall_s` are the server's `run_timeout`.

    Raises:
        NotRunError: the server gave no answer, or says that its sandbox failed.
    """
    told = {"called": called_source() if spec.call is not None else "", **vars(spec)}
    form = _WITH_CALL if spec.call is not None else _WITHOUT if spec.before else "{code}"
    body = {"code": form.format(**told), "language": "python", "stdin": given, "run_timeout": spec.wall_s}
    try:
        answer = post(f"{url.rstrip('/')}/run_code", body, {}, timeout_s=spec.wall_s + _SLACK_S, tries=_TRIES)
    except ServerError as error:
        raise NotRunError(str(error)) from error
    return _ended(url, answer, spec)


def _ended(url: str, answer: Any, spec: Spec) -> Ended:
    status = answer.get("status") if isinstance(answer, dict) else None
    result = answer.get("run_result") if status in ("Success", "Failed") else None
    if not isinstance(result, dict) or result.get("status") not in ("Finished", "Error", "TimeLimitExceeded"):
        raise NotRunError(f"{url} answered {answer!r:.200}")
    output, code = str(result.get("stdout") or ""), result.get("return_code")
    if result["status"] == "TimeLimitExceeded":
        return Ended(output, f"it took more than {spec.wall_s:g} s", is_late=True)
    if len(output.encode(errors="replace")) > spec.output_bytes:
        return Ended("", f"it wrote more than {spec.output_bytes} bytes")
    return Ended(output, "" if result["status"] == "Finished" and code == 0 else f"it ended with {code}")
