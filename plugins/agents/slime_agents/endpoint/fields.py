"""Fields of requests: honoured, ignored, the run's own, or refused and why.

A field in no table is refused by name: to drop it in silence could change what is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime.errors import nearest
from slime_agents.endpoint.said import ANY_TOOL, RefusedRequestError

log = logging.getLogger(__name__)
_told = set[str]()


@dataclass(frozen=True)
class Fields:
    """The fields of one kind of object.

    Attributes:
        honoured: read elsewhere.
        ignored: of no account here: storage, billing, caching, and what clients put into a history.
        of_the_run: set by the run's configuration, whatever is asked; the log says so once.
        refused: reasons by name.
        neutral: values of refused fields that ask for nothing, beside null, false, 0 and what is empty.
        meant: the right names of unknown ones.
    """

    honoured: Collection[str]
    ignored: Collection[str] = ()
    of_the_run: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    neutral: Mapping[str, Collection[Any]] = field(default_factory=dict)
    meant: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> set[str]:
        return {*self.honoured, *self.ignored, *self.of_the_run, *self.refused}

    def check(self, given: Mapping[str, Any], where: str = "") -> None:
        """Raises RefusedRequestError: a field is refused, or not known."""
        for name, value in given.items():
            if name in self.honoured or name in self.ignored:
                continue
            if name in self.of_the_run:
                if value is not None and name not in _told:
                    _told.add(name)
                    log.warning("Agents ask for %s=%.60r; the run's own configuration is taken instead", name, value)
            elif name in self.refused:
                if value and value not in self.neutral.get(name, ()):
                    raise RefusedRequestError(f"'{name}' is not supported: {self.refused[name]}", where + name)
            elif value is not None:
                near = self.meant.get(name) or nearest(name, self.honoured)
                meant = f": did you mean '{near}'?" if near else ""
                raise RefusedRequestError(f"'{name:.80}' is not known{meant}", f"{where}{name:.80}")


_THINKING = "whether and how the model thinks is of the run: data.chat_template_kwargs"
_SAMPLING = "the run has no such sampling"
SERVER = "no server but the agent's own keeps or runs anything"
TEXT_ALONE = "agents are given text"
WHOLE = "nothing of a history is left out here: shorten it in the agent"
_IN_WORDS = "say it in the words of a message"

COMPLETIONS = Fields(
    honoured=("messages", "model", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options", "tools",
              "tool_choice", "parallel_tool_calls", "response_format", "n", "modalities"),
    ignored=("metadata", "user", "store", "safety_identifier", "service_tier", "prompt_cache_key", "prediction",
             "prompt_cache_options", "prompt_cache_retention"),
    of_the_run=("temperature", "top_p", "top_k", "seed", "reasoning_effort"),
    refused={
        "functions": "name them in 'tools'",
        "function_call": "use 'tool_choice'",
        **dict.fromkeys(("logprobs", "top_logprobs"), TEXT_ALONE),
        **dict.fromkeys(("logit_bias", "min_p"), _SAMPLING),
        **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty"), _SAMPLING),
        "audio": "the model says text alone",
        **dict.fromkeys(("web_search_options", "moderation"), SERVER),
        "verbosity": _IN_WORDS,
        **dict.fromkeys(("thinking", "reasoning", "enable_thinking", "chat_template_kwargs"), _THINKING),
    },
    neutral={"verbosity": ("medium",), "repetition_penalty": (1,), "function_call": ("auto",)},
    meant={"stop_sequences": "stop", "max_output_tokens": "max_completion_tokens", "system": "messages",
           "max_new_tokens": "max_completion_tokens", "input": "messages", "prompt": "messages", "prefill": "messages",
           "instructions": "messages", "text": "response_format"},
)  # fmt: skip
_NAMES = {"name": "the chat template has no place for a speaker's name: say it in the content"}
COMPLETIONS_MESSAGE = Fields(honoured=("role", "content"), refused=_NAMES)
_PREFILL = "an answer begins where the model begins it"
COMPLETIONS_ASSISTANT = Fields(
    honoured=("role", "content", "tool_calls", "reasoning_content", "reasoning"),
    ignored=("annotations", "parsed", "provider_specific_fields", "thinking_blocks", "reasoning_details", "name"),
    refused={"refusal": "write it as the content", "audio": "the model says text alone",
             "function_call": "use 'tool_calls'", "prefix": _PREFILL, "partial": _PREFILL},
)  # fmt: skip
COMPLETIONS_RESULT = Fields(honoured=("role", "content", "tool_call_id"), ignored=("name",))
COMPLETIONS_CALL = Fields(
    honoured=("id", "function", "type"), ignored=("index", "extra_content", "provider_specific_fields"),
    refused={"custom": "tools are functions"},
)  # fmt: skip
CALLED = Fields(honoured=("name", "arguments"), ignored=("parsed_arguments",))
COMPLETIONS_TOOL = Fields(
    honoured=("function",), ignored=("cache_control",), refused={"type": "tools are functions"},
    neutral={"type": ("function",)},
)  # fmt: skip
FUNCTION = Fields(honoured=("name", "description", "parameters"), ignored=("strict",))
STREAM_OPTIONS = Fields(honoured=("include_usage",), ignored=("include_obfuscation", "chunk_include_usage"))

MESSAGES = Fields(
    honoured=("messages", "model", "max_tokens", "stop_sequences", "stream", "system", "tools", "tool_choice", "thread",
              "output_config", "output_format"),
    ignored=("metadata", "cache_control", "service_tier", "speed", "inference_geo", "diagnostics", "billing_policy",
             "user_profile_id", "workspace_id", "betas", "fallback_credit_token", "fallbacks"),
    of_the_run=("temperature", "top_p", "top_k", "thinking"),
    refused={
        **dict.fromkeys(("container", "mcp_servers"), SERVER),
        **dict.fromkeys(("context_management", "compaction"), WHOLE),
    },
    meant={"stop": "stop_sequences", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
           "response_format": "output_config", "prefill": "messages", "functions": "tools",
           "previous_message_id": "thread"},
)  # fmt: skip
MESSAGES_MESSAGE = Fields(
    honoured=("role", "content"),
    ignored=("id", "type", "model", "stop_reason", "stop_sequence", "stop_details", "usage"),
    of_the_run=("output_config",),
    refused={"clear_at": "nothing of a history is left out here", "container": SERVER},
)
_DIRECT = ({"type": "direct"},)
BLOCKS: Mapping[str, Fields] = {
    "text": Fields(honoured=("type", "text"), ignored=("cache_control", "citations", "parsed_output")),
    "thinking": Fields(honoured=("type", "thinking"), ignored=("signature", "cache_control")),
    "redacted_thinking": Fields(honoured=("type",), ignored=("data", "cache_control")),
    "tool_use": Fields(honoured=("type", "id", "name", "input"), ignored=("cache_control",),
                       refused={"caller": SERVER, "toolset_name": SERVER}, neutral={"caller": _DIRECT}),
    "tool_result": Fields(honoured=("type", "tool_use_id", "content", "is_error"), ignored=("cache_control",),
                          refused={"toolset_name": SERVER}),
}  # fmt: skip
OUTPUT = Fields(
    honoured=("format",), of_the_run=("effort",),
    refused={"task_budget": _IN_WORDS},
)  # fmt: skip
MESSAGES_TOOL = Fields(
    honoured=("name", "description", "input_schema"),
    ignored=("cache_control", "strict", "eager_input_streaming"),
    refused={
        "type": "tools are the agent's own",
        "input_examples": "write them into the description",
        **dict.fromkeys(("defer_loading", "allowed_callers"), SERVER),
    },
    neutral={"type": ("custom",), "allowed_callers": (["direct"],)},
)
CHOICE = Fields(honoured=("type", "name", "disable_parallel_tool_use"))
THREAD = Fields(honoured=("type", "previous_message_id"))


def tool_choice(choice: Any, names: Collection[str] | None) -> tuple[bool, str]:
    """Says whether a `tool_choice` of any API lets the model call tools, and whose call it demands (`ANY_TOOL`: of one
    of them). Nothing forces that call.

    Args:
        names: of the tools; None: they may stand in an earlier request.

    Raises:
        RefusedRequestError: it is of another form, or there is no such tool.
    """
    param = "tool_choice"
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind in (None, "auto", "none"):
        return kind != "none", ""
    if kind not in ("required", "any", "function", "tool"):
        what = f"'{param}' is {choice!r:.80}: it may be auto, none, required, any or one tool"
        raise RefusedRequestError(what, param)
    if names is not None and not names:
        raise RefusedRequestError(f"'{param}' demands a call, and there are no tools", param)
    if kind in ("required", "any"):
        return True, ANY_TOOL
    inner = choice.get("function", choice) if isinstance(choice, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if names is not None and name not in names:
        near = nearest(str(name), names)
        meant = f": did you mean '{near}'?" if near else ""
        raise RefusedRequestError(f"'{param}' names the tool {name!r:.60}, which there is not{meant}", param)
    return True, str(name or ANY_TOOL)


def function_tool(told: Mapping[str, Any], parameters: str = "parameters") -> Mapping[str, Any]:
    """A function as the OpenAI API has it, of the fields that say what it is."""
    about = {"name": str(told.get("name", "")), "description": str(told.get("description") or "")}
    schema = told.get(parameters)
    return {"type": "function", "function": about | {"parameters": {"type": "object"} if schema is None else schema}}
