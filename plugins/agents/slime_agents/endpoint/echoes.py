"""Answers as clients rewrite them when they send them again, beside what is the same by `Said.key`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import replace

from slime_agents.endpoint.said import Call, Said

_CALLS = re.compile(r"(.*?)\s*^Calling tools:\s*(\[\{.*\}\])", re.DOTALL | re.MULTILINE)
"""Calls in the words of an answer, as smolagents writes them."""
_MAX_CHARS = 100_000
"""Limit of calls in words: Python's own reader takes a second for some millions."""
_CODE = "python_interpreter"
"""Its name for the code in an answer, where an agent writes code and no calls."""


def origins(said: Said, stops: Collection[str]) -> Iterator[Said]:
    """Messages of the model that a client may have made this one of: without a stop string that was put back behind it,
    and without words for calls that the model made.

    Args:
        stops: stop strings of the requests that were answered there.
    """
    for one in (said, *_without_words_for_calls(said)):
        if one is not said:
            yield one
        text = one.text.rstrip()
        for stop in stops:
            if stop.strip() and text.endswith(stop.strip()):
                yield replace(one, text=text.removesuffix(stop.strip()))


def _without_words_for_calls(said: Said) -> Iterator[Said]:
    found = _CALLS.fullmatch(said.text.rstrip()) if "Calling tools:" in said.text else None
    if found is None or said.calls or len(found[2]) > _MAX_CHARS:
        return
    try:
        functions = [(each["id"], each["function"]) for each in ast.literal_eval(found[2])]
        calls = [Call.read(str(number), function["name"], function["arguments"]) for number, function in functions]
        code = [str(function["arguments"]) for _, function in functions]
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        return
    if all(call.name == _CODE for call in calls) and all(each.strip() in found[1] for each in code):
        yield replace(said, text=found[1])
    else:
        yield replace(said, text=found[1], calls=tuple(calls))
