"""Calls of tools in what a model wrote, by SGLang's parsers, and by a form that SGLang has none for."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from slime.contracts import Responder
from slime.errors import SlimeError
from slime_agents.conversations.thinking import parted

NAME_JSON = "name-json"
"""The name of a function in one line, and its arguments as JSON in the next, as GLM-4 (0414) writes a call. Chat
templates that write no calls at all are taken to mean this."""
PROBE = {"type": "function", "function": {"name": "probe_tool", "description": "Try it.", "parameters": {
    "type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}}  # fmt: skip
ARGUMENTS = {"word": "blue"}

log = logging.getLogger(__name__)


class Call(NamedTuple):
    name: str
    arguments: Mapping[str, Any]


class Read(NamedTuple):
    """The text of a response without thinking and calls, and the calls in their order."""

    text: str
    calls: list[Call]


class IllFormedError(Exception):
    """A call that cannot be read; says why, to the model."""


class CallReader(Protocol):
    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Read:
        """Read a response. Raises IllFormedError: a call begins and cannot be read."""


def import_parsers(model: Responder, parser: str | None) -> None:
    """Import what `reader_for` and its readers import, of SGLang where it is installed; this takes seconds."""
    if parser != NAME_JSON and (parser or _written(model) is not None) and find_spec("sglang"):
        import_module("sglang.srt.function_call.function_call_parser")
        import_module("sglang.srt.entrypoints.openai.protocol")


def reader_for(model: Responder, parser: str | None) -> CallReader:
    """A reader of calls as the model's chat template writes them. Importing SGLang's parsers takes seconds.

    Args:
        parser: as `ToolsOptions.parser`; None: the first that reads the template's own call.

    Raises:
        SlimeError: there is no such parser, or none reads what the template writes.
    """
    written = None if parser else _written(model)
    if parser == NAME_JSON or (parser is None and written is None):
        return read_name_json
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    names = sorted(FunctionCallParser.ToolCallParserEnum)
    if parser is not None:
        if parser not in names:
            known = ", ".join([NAME_JSON, *names])
            raise SlimeError(
                f"there is no parser '{parser}'", where="rollout.program.options.parser", todo=f"Take one of {known}."
            )
        return _SGLangReader(parser)
    assert written is not None, "without it there is no need of a parser"
    for name in names:
        reader = _SGLangReader(name)
        try:
            if reader(written, [PROBE]).calls == [Call("probe_tool", ARGUMENTS)]:
                log.info("Calls of tools are read as '%s'", name)
                return reader
        except (IllFormedError, Exception):  # noqa: BLE001 because a parser of another form may fail in any way
            continue
    todo = "Name one by rollout.program.options.parser."
    raise SlimeError(f"no parser reads a call as the chat template writes it: {written!r:.200}", todo=todo)


def _written(model: Responder) -> str | None:
    """A call as the chat template writes it, without the opening and the end of the turn; None where it writes none."""
    user, plain = {"role": "user", "content": "probe."}, {"role": "assistant", "content": "It is so."}
    for arguments in (ARGUMENTS, json.dumps(ARGUMENTS)):
        call = {"type": "function", "id": "call00001", "function": {"name": "probe_tool", "arguments": arguments}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        try:
            before, said, called = (model.rendered([user, *more], [PROBE]) for more in ([], [plain], [answer]))
        except SlimeError:
            continue
        opening, _, end = said.removeprefix(before).partition("It is so.")
        added = called.removeprefix(before).removeprefix(opening).removesuffix(end)
        if "probe_tool" in added and "blue" in added:
            return added
    return None


def read_name_json(text: str, tools: Sequence[Mapping[str, Any]]) -> Read:
    """See `NAME_JSON`."""
    said = parted(text)[2].strip()
    name, _, rest = said.partition("\n")
    if name not in [tool["function"]["name"] for tool in tools]:
        return Read(said, [])
    try:
        arguments, _ = json.JSONDecoder().raw_decode(rest.lstrip())
    except (ValueError, RecursionError) as error:
        raise IllFormedError(f"the arguments are not JSON: {error}") from error
    return Read("", [_checked(name, arguments)])


class _SGLangReader:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Read:
        from sglang.srt.entrypoints.openai.protocol import Tool
        from sglang.srt.function_call.function_call_parser import FunctionCallParser

        parser = FunctionCallParser([Tool(**tool) for tool in tools], self._name)
        said = parted(text)[2]
        if not parser.has_tool_call(said):
            return Read(said.strip(), [])
        try:
            words, found = parser.parse_non_stream(said)
        except Exception as error:  # because each fails in its own way at what it does not expect
            raise IllFormedError(f"the call cannot be read ({type(error).__name__})") from error
        if not found:  # they leave out what they cannot read, and functions that they do not know
            raise IllFormedError("the call is not complete, or names a tool that there is not")
        return Read(words.strip(), [_checked(call.name, _loads(call.parameters)) for call in found])


def _loads(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise IllFormedError(f"the arguments are not JSON: {error}") from error


def _checked(name: str, arguments: Any) -> Call:
    if not isinstance(arguments, dict):
        raise IllFormedError("the arguments are no JSON object")
    return Call(name, arguments)
