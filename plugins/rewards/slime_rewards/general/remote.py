"""Reward `remote`: a server of yours judges, by JSON over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

from slime.types import Sample, Verdict
from slime_rewards.general.http import ServerError, post


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
