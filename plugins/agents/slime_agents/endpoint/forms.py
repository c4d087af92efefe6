"""Forms that clients ask of answers: JSON, or JSON by a schema. The policy is told them in words, and samples freely.

Constrained decoding would sample from another distribution than the one that is trained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

from slime_agents.endpoint import values
from slime_agents.endpoint.said import ANY_TOOL, Answer, Form, RefusedRequestError, Request, Said, of_kind

WORDS, UNSAID, REFUSE = "words", "unsaid", "refuse"
STRUCTURED = (WORDS, UNSAID, REFUSE)
"""Ways of a run with them, see `EndpointOptions.structured`."""
_OF_READING = re.compile(r"\b\w*(?:Pars|Validation|Decode|Schema|StructuredOutput)\w*(?:Error|Exception)\b")
"""Names of exceptions, as a traceback has them: ValidationError, JSONDecodeError, AdapterParseError and the like."""
_KINDS = ("text", "json_object", "json_schema")


def form_in(value: Mapping[str, Any], param: str) -> Form | None:
    """The form of a request's field, whose schema stands in it or in its `json_schema`; None: it is any text.

    Raises:
        RefusedRequestError: it is none that can be asked for.
    """
    kind = value.get("type", "text")
    if kind not in _KINDS:
        raise RefusedRequestError(f"'{param}' is '{kind!s:.60}': {', '.join(_KINDS)} are supported", param)
    if kind == "text":
        return None
    if kind == "json_object":
        return Form(None, "", param)
    inner = of_kind(value, "json_schema", dict, value)
    if not isinstance(inner.get("schema"), dict):
        raise RefusedRequestError(f"'{param}' has no schema", param)
    if not values.is_shallow(inner["schema"]):
        raise RefusedRequestError(f"the schema of '{param}' is nested more than {values.MAX_DEPTH} deep", param)
    about = [str(inner[name]) for name in ("name", "description") if inner.get(name)]
    return Form(inner["schema"], ": ".join(about), param)


def as_the_run_wants(request: Request, structured: str) -> Request:
    """The request, whose first message says the form of the answer, if it is to be said: there it is the same in every
    request of a conversation, and every chat template takes it.

    Raises:
        RefusedRequestError: the run wants no forms.
    """
    form = request.form
    if form is None or not request.said or structured == UNSAID:
        return request
    if structured == REFUSE:
        what = f"'{form.param}' asks for a form, which this run refuses (rollout.program.options.structured)"
        raise RefusedRequestError(what, form.param)
    first, *others = request.said
    words = _words(form, bool(request.tools))
    if first.role not in ("system", "user"):
        return replace(request, said=(Said("system", words), *request.said))
    text = f"{first.text}\n\n{words}" if first.text else words
    return replace(request, said=(replace(first, text=text), *others))


def _words(form: Form, has_tools: bool) -> str:
    begin = "If you call no tool, answer" if has_tools else "Answer"
    if form.schema is None:
        return f"{begin} with one JSON object, without a word or a code fence around it."
    schema = json.dumps(form.schema, ensure_ascii=False)
    name = f" ({form.about})" if form.about else ""
    return f"{begin} with JSON of this schema{name}, without a word or a code fence around it:\n{schema}"


def is_missed(request: Request, answer: Answer) -> bool:
    """An answer that is not of the form that was asked, lacks a demanded call, or has one not of its tool's schema."""
    calls = answer.said.calls
    if request.demanded and not any(request.demanded in (call.name, ANY_TOOL) for call in calls):
        return True
    if request.form and not calls:
        return not _fits(answer.said.text, request.form)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in request.tools} if calls else {}
    return any(not _is_valid(call.arguments, schemas.get(call.name)) for call in calls)


def is_of_reading(error: Exception) -> bool:
    """An agent's error by which libraries say that they cannot read an answer."""
    names = (each.__name__ for each in type(error).__mro__)
    return any(map(_OF_READING.fullmatch, names)) or bool(_OF_READING.search(getattr(error, "output", "")))


def _fits(text: str, form: Form) -> bool:
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) if form.schema is None else _is_valid(value, form.schema)


def _is_valid(value: Any, schema: Any) -> bool:
    if not isinstance(schema, dict):
        return True
    try:
        # Of a registry that fetches nothing.
        return bool(Draft202012Validator(schema, registry=Registry()).is_valid(value))
    except Exception:  # noqa: BLE001  a schema that cannot be used says nothing of a value
        return True


def _no_number(name: str) -> Any:
    raise ValueError(name)
