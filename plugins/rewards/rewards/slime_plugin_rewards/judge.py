"""Reward `judge`: a language model gives the grade, an engine group's of the run or one behind any URL of OpenAI's form
(SGLang, vLLM, a provider)."""

from __future__ import annotations

import os
import random
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from slime.errors import SlimeError
from slime.thinking import divided, said
from slime.types import Sample, Verdict
from slime_plugin_rewards.http import ServerError, post

TEMPLATE = """You grade the answer to a task.

Task:
{prompt}

Reference answer:
{label}

Answer to grade:
{response}

Does the answer agree with the reference? End with a line "Grade: 1" if it does, else "Grade: 0"."""
_MAX_CACHED = 4096


def unclear(url: Any, group: Any, key_variable: Any, where: str = "reward.options") -> SlimeError | None:
    """Why it is not clear whom to ask, if it is not."""
    if bool(url) == bool(group):
        what, todo = "names both url and engines" if url else "names nobody to ask", "Set one of url and engines."
        return SlimeError(what, where=where, todo=todo)
    if group and key_variable:
        what = "is set, but a run's own engines have keys that slime makes"
        return SlimeError(what, where=f"{where}.key_variable", todo="Remove it.")
    return None


@dataclass
class JudgeReward:
    """The grade that the model writes. A judgement without a grade is an `error`, never a 0. The same text is judged
    once: temperature 0, and a cache by content in each worker."""

    url: str | None = None
    """Of the API, up to `/v1`; or else `engines`."""
    engines: str | None = None
    """Engine group of the run that has a model of its own (`rollout.engines.NAME.model`)."""
    model: str = "default"
    """Name of the model there."""
    template: str = TEMPLATE
    """What it is asked; `{prompt}`, `{label}` and `{response}` are filled in."""
    grade: str = r"Grade:\s*\[*\s*(-?\d+(?:\.\d+)?)"
    """Regular expression whose group is the grade; the last one found counts."""
    max_grade: float = 1.0
    """What the grade is divided by."""
    key_variable: str | None = None
    """Variable of the environment with the API key; name it in `reward.environment`, too."""
    max_tokens: int = 2048
    """Tokens that a judgement may have."""
    fields: dict[str, Any] = field(default_factory=dict)
    """More fields of the request."""
    request_timeout_s: float = 60.0
    """Seconds that one request may take; `reward.timeout_s` is for all tries."""
    tries: int = 3
    """Requests for a sample, where the server is away, busy or broken."""

    def __post_init__(self) -> None:
        if fault := unclear(self.url, self.engines, self.key_variable):
            raise fault
        try:
            self._grade = re.compile(self.grade)
        except re.error as error:
            where = "reward.options.grade"
            raise SlimeError(f"is no regular expression: {error}", where=where, todo="Correct it.") from error
        if not self._grade.groups:
            raise SlimeError("has no group", where="reward.options.grade", todo="Put the grade in parentheses.")
        if self.key_variable and self.key_variable not in os.environ:
            todo = f"Set it, and name it: reward.environment=[{self.key_variable}]."
            raise SlimeError(
                f"there is no variable {self.key_variable}", where="reward.options.key_variable", todo=todo
            )
        self._cache: OrderedDict[str, str] = OrderedDict()

    def score(self, sample: Sample) -> Verdict:
        asked = self._asked(sample)
        if asked not in self._cache:
            try:
                self._cache[asked] = self._judgement(asked)
            except ServerError as error:
                return Verdict.error(str(error))
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        judgement = self._cache[asked]
        grades = self._grade.findall(divided(judgement)[1])
        if not grades:
            return Verdict.error(f"the judge gave no grade: {judgement[-80:]!r}")
        last = grades[-1] if isinstance(grades[-1], str) else grades[-1][0]
        try:
            return Verdict.of(float(last) / self.max_grade)
        except ValueError:
            return Verdict.error(f"the judge's grade is no number: {last!r:.80}")

    def _asked(self, sample: Sample) -> str:
        """The filled template. What is filled in is not searched for more places: a response may say `{label}`."""
        prompt = "\n\n".join(str(message.get("content", "")) for message in sample.prompt.messages)
        response = said(sample).strip()
        values = {"prompt": prompt, "label": str(sample.prompt.label), "response": response}
        return re.sub(r"\{(prompt|label|response)\}", lambda found: values[found[1]], self.template)

    def _judgement(self, asked: str) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": asked}],
            "temperature": 0.0,
            "max_tokens": self.max_tokens,
            **self.fields,
        }
        headers = {"Authorization": f"Bearer {os.environ[self.key_variable]}"} if self.key_variable else {}
        api = str(self.url).rstrip("/")
        if self.engines:
            from slime.reward.engines import engines  # here, because importing a plugin is to be quick

            engine = random.choice(engines(self.engines))
            api, headers = f"{engine.url}/v1", engine.headers
        url, of_run = f"{api}/chat/completions", self.engines is not None
        answer = post(url, body, headers, timeout_s=self.request_timeout_s, tries=self.tries, passes_proxies=of_run)
        try:
            return str(answer["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError) as error:
            raise ServerError(f"{url} answered no chat completion: {answer!r:.80}") from error
