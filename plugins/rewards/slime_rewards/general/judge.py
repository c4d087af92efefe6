"""Reward `judge`: the grade of a language model, of the run's engines or behind any URL of OpenAI's form."""

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
from slime_rewards.general.remote import ServerError, post

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
    """The reason why it is not clear whom to ask, if it is not."""
    if bool(url) == bool(group):
        what, todo = "names both url and engines" if url else "names nobody to ask", "Set one of url and engines."
        return SlimeError(what, where=where, todo=todo)
    if group and key_variable:
        what = "is set, but a run's own engines have keys that slime makes"
        return SlimeError(what, where=f"{where}.key_variable", todo="Remove it.")
    return None


def _is_quoted(found: re.Match[str]) -> bool:
    """A grade in quotes, code or a block quote, as the judged response's own would be. One that is alone in its line
    may have quotes around it."""
    text, start = found.string, found.start()
    begin = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", found.end())
    before, behind = text[begin:start], text[found.end() : line_end if line_end >= 0 else len(text)]
    if before.lstrip().startswith(">") or text.count("```", 0, start) % 2:
        return True
    is_alone = not re.search(r"\w", before + behind)
    is_open = any(before.count(mark) % 2 for mark in '"`') or before.count("“") > before.count("”")
    return not is_alone and (is_open or bool(re.search(r"(?:^|\s)'$", before)))


@dataclass
class JudgeReward:
    """The grade that the model writes. A judgement without a grade is an `error`. The same text is judged once:
    temperature 0, and a cache by content in each worker."""

    url: str | None = None
    """Of the API, up to `/v1`; or else `engines`."""
    engines: str | None = None
    """Engine group of the run that has a model of its own (`rollout.engines.NAME.model`)."""
    model: str = "default"
    """Name of the model there."""
    template: str = TEMPLATE
    """What it is asked; `{prompt}`, `{label}` and `{response}` are filled in."""
    grade: str = r"Grade:\s*\[*\s*(-?\d+(?:\.\d+)?)"
    """Regular expression whose group is the grade; the last one found counts, less those that
    the judgement quotes."""
    max_grade: float = 1.0
    """What the grade is divided by; a grade beyond it is an error."""
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
        text = divided(judgement)[1]
        last = next((found[1] for found in reversed(list(self._grade.finditer(text))) if not _is_quoted(found)), None)
        if last is None:
            return Verdict.error(f"the judge gave no grade: {judgement[-80:]!r}")
        try:
            grade = float(last)
        except ValueError:
            return Verdict.error(f"the judge's grade is no number: {last!r:.80}")
        if not abs(grade) <= self.max_grade:
            return Verdict.error(f"the judge's grade {last:.20} is beyond reward.options.max_grade={self.max_grade:g}")
        return Verdict.of(grade / self.max_grade)

    def _asked(self, sample: Sample) -> str:
        """The filled template. What is filled in is not searched for more places: a response may say `{label}`."""
        prompt = "\n\n".join(str(message.get("content", "")) for message in sample.prompt.messages)
        values = {"prompt": prompt, "label": str(sample.prompt.label), "response": said(sample).strip()}
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
            choice = answer["choices"][0]
            text, is_cut = str(choice["message"]["content"]), choice.get("finish_reason") == "length"
        except (AttributeError, KeyError, IndexError, TypeError) as error:
            raise ServerError(f"{url} answered no chat completion: {answer!r:.80}") from error
        if is_cut and re.search(r"\w", self._grade.sub("", text)):  # the last grade may be a thought, to be taken back
            raise ServerError(
                f"the judgement was cut off at reward.options.max_tokens={self.max_tokens}: {text[-80:]!r}"
            )
        return text
