"""Reward `remote`, a server of yours judges; and the request of JSON to a server that other rewards make, too."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slime.as_json import to_json
from slime.types import Sample, Verdict

_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_FIRST_WAIT_S, _MAX_ANSWER_BYTES = 0.5, 1 << 22


class ServerError(Exception):
    """The server gave no answer that can be used; says why."""


def post(
    url: str, body: Any, headers: Mapping[str, str], *, timeout_s: float, tries: int, passes_proxies: bool = False
) -> Any:
    """The JSON that the server answers.

    Args:
        passes_proxies: ask the server itself, whatever proxies the environment names.

    Raises:
        ServerError: after `tries` requests there is none.
    """
    import urllib.error  # here, because every command imports the rewards, and few ask a server
    import urllib.request

    data = to_json(body).encode()
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if passes_proxies else []))
    for attempt in range(tries):
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
        try:
            with opener.open(request, timeout=timeout_s) as response:
                return json.loads(response.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            fault = f"{url} answered {error.code} {error.reason}{_said(error)}"
            if error.code not in _AGAIN:
                raise ServerError(fault) from error
        except (OSError, ValueError) as error:  # away, slow, or no JSON
            fault = f"{url}: {type(error).__name__}: {error}"
        if attempt + 1 < tries:
            time.sleep(_FIRST_WAIT_S * 2**attempt)
    raise ServerError(f"{fault} (tried {tries} times)")


def _said(error: Any) -> str:
    """The message of an error as OpenAI's API has them."""
    try:
        said = json.loads(error.read(_MAX_ANSWER_BYTES))["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):  # some other answer
        return ""
    return f": {said!s:.300}"


@dataclass
class RemoteReward:
    """The number that a server answers to `{"response", "label", "messages", "metadata"}`: a bare number, or
    `{"value": ..., "parts": {...}}`, or `{"invalid": "why"}` for a sample that cannot be judged."""

    url: str
    """Where the sample is posted."""
    request_timeout_s: float = 30.0
    """Seconds that one request may take; `reward.timeout_s` is for all tries."""
    tries: int = 3
    """Requests for a sample, where the server is away, busy or broken."""

    def score(self, sample: Sample) -> Verdict:
        prompt = sample.prompt
        body = {"response": sample.response, "label": prompt.label}
        body |= {"messages": list(prompt.messages), "metadata": dict(prompt.metadata)}
        try:
            answer = post(self.url, body, {}, timeout_s=self.request_timeout_s, tries=self.tries)
        except ServerError as error:
            return Verdict.error(str(error))
        if isinstance(answer, dict) and isinstance(answer.get("invalid"), str):
            return Verdict.invalid(answer["invalid"])
        value, parts = (answer.get("value"), answer.get("parts", {})) if isinstance(answer, dict) else (answer, {})
        if isinstance(value, bool | int | float) and isinstance(parts, dict):
            return Verdict.of(float(value), **parts)
        return Verdict.error(f"{self.url} answered {answer!r:.80}, which is no number")
