"""Paths that the endpoint answers, and its words on those that it does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import ModuleType
from typing import NamedTuple

from aiohttp import web

from slime.errors import nearest
from slime_agents.endpoint import anthropic_messages, chat_completions, responses
from slime_agents.endpoint.bodies import TurnedAwayError

CHAT, MESSAGES, COUNT, MODELS, MODEL, RESPONSES, RESPONSE, COUNT_ITEMS, VERDICT = (
    "chat/completions", "messages", "messages/count_tokens", "models", "models/", "responses", "responses/",
    "responses/input_tokens", "verdict",
)  # fmt: skip
METHODS = {CHAT: "POST", MESSAGES: "POST", COUNT: "POST", MODELS: "GET", MODEL: "GET", RESPONSES: "POST",
           COUNT_ITEMS: "POST", RESPONSE: "GET, DELETE", VERDICT: "POST"}  # fmt: skip
"""Methods by the first words of a path that is answered; one that ends with a slash has a name behind it."""
_ELSEWHERE = "Give the agent a client of its own for it, with another base URL."
_OTHERS: Mapping[str, str] = {
    "conversations": "Conversations are not kept. Name the answer before by previous_response_id, or send all of it.",
    "completions": "Only chats are answered. Ask chat/completions; with litellm 'openai/policy', and no "
    "'text-completion-openai/policy'.",
    "complete": "Only chats are answered. Ask messages.",
    "chat/completions/": "Answers are not stored. Keep what POST chat/completions answers.",
    "messages/batches": "There are no batches. Ask messages, as many at a time as you like.",
    "embeddings": f"The model makes no embeddings. {_ELSEWHERE}",
    "openai/deployments": "This is Azure's path. Use OpenAI's own client: OpenAI, ChatOpenAI, 'openai/policy'.",
    "api/chat": "This is ollama's path. Use a client of OpenAI or Anthropic.",
    "api/generate": "This is ollama's path. Use a client of OpenAI or Anthropic.",
    "models/.+:": "This is Gemini's path. Use a client of OpenAI or Anthropic.",
    **dict.fromkeys(
        ("audio", "images", "videos", "files", "uploads", "batches", "fine_tuning", "vector_stores", "moderations",
         "assistants", "threads", "realtime", "containers", "evals", "skills", "organization", "rerank"),
        f"The trained model has no such service. {_ELSEWHERE}",
    ),
}  # fmt: skip
"""Advice by the first words of a path that is not answered."""
_FIRST = {name.partition("/")[0] for name in (*METHODS, *_OTHERS)}


class Target(NamedTuple):
    """The target of a request.

    Attributes:
        key: of an attempt, where the path has one.
        what: one of `METHODS`; or all of a path that is not answered.
        name: behind it.
        dialect: in which errors are told.
    """

    key: str | None
    what: str
    name: str
    dialect: ModuleType


def target(http: web.BaseRequest) -> Target:
    words = http.path.removeprefix("/").split("/")
    key = words.pop(0) if len(words) > 1 and words[0] not in {"v1", *_FIRST} else None
    if words[0] == "v1":
        del words[0]
    path = "/".join(words)
    what, name = next(((each, path.removeprefix(each)) for each in METHODS if _fits(path, each)), (path, ""))
    is_anthropic = (
        what.removeprefix("v1/").partition("/")[0] in ("messages", "complete") or "anthropic-version" in http.headers
    )
    if what in (RESPONSES, RESPONSE, COUNT_ITEMS):
        return Target(key, what, name, responses)
    return Target(key, what, name, anthropic_messages if is_anthropic else chat_completions)


def _fits(path: str, known: str) -> bool:
    return path == known or (known.endswith("/") and path.startswith(known) and ":" not in path and path != known)


def check(what: str, http: web.BaseRequest) -> None:
    """Raises TurnedAwayError: the path or its method is not answered; says what to ask."""
    where = f"{http.method} {what:.200}"
    if method := METHODS.get(what):
        if http.method not in method.split(", "):
            raise TurnedAwayError(f"{where} is asked by {method} alone", HTTPStatus.METHOD_NOT_ALLOWED, allow=method)
        return
    raise TurnedAwayError(f"{where} is not what this endpoint answers. {_todo(what)}", HTTPStatus.NOT_FOUND)


def _todo(what: str) -> str:
    if what.startswith("v1/"):
        return "The base URL has /v1 twice. Anthropic's clients take ANTHROPIC_BASE_URL, which has none."
    if what.startswith("models/"):
        return _OTHERS["models/.+:"]
    for known, todo in _OTHERS.items():
        if what == known.rstrip("/") or what.startswith(f"{known.rstrip('/')}/"):
            return todo
    if near := nearest(what.strip("/"), METHODS):
        return f"Did you mean '{near.rstrip('/')}'?"
    return f"It answers {', '.join(sorted(name.rstrip('/') for name in METHODS if name not in (MODEL, RESPONSE)))}."
