"""`slime check-chat MODEL`: conversations of several turns must keep their tokens in a model's chat template."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.printable import printable

UNFIT = 1
"""Exit code."""
MAX_TOKENS = 10**6
WORDS = ("yes", "it is 12.5", 'a "b"', "\n\n", "{}", " ")
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}]  # fmt: skip
KINDS = {
    "a user after an answer": ("user",),
    "a tool": ("tool",),
    "parallel tools": ("tool", "tool"),
    "a user after a tool": ("tool", "user"),
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Tries a chat template on random conversations; exits with 1 where it cannot be used."
    parser.add_argument("model", help="folder of a checkpoint, or of its tokenizer")
    parser.add_argument("--count", type=int, default=100, help="conversations of each kind (default: 100)")


def run(args: Namespace) -> int:
    """Raises SlimeError: the folder has no tokenizer with a chat template."""
    from slime.config.schema import DataConfig
    from slime.data.tokenize import load_tokenizer
    from slime_agents.conversations.chat_format import ChatFormat

    tokenizer = load_tokenizer(Path(args.model))
    chat, faults = ChatFormat(tokenizer, DataConfig(path=""), MAX_TOKENS), 0
    for kind, roles in KINDS.items():
        fault, rewritten = tried(chat, tokenizer, roles, args.count)
        faults += bool(fault)
        lines = [f"{kind:<24}{fault or 'kept'}", *([f"{'':<24}{rewritten}"] if rewritten else [])]
        print(printable("\n".join(lines)))  # noqa: T201 because it is what the verb answers
    return UNFIT if faults else 0


def tried(chat: Any, tokenizer: Any, roles: Sequence[str], count: int) -> tuple[str, str]:
    """The fault of messages of these roles behind a turn; and the first token that the template would write otherwise,
    rendering the whole, which is no fault: slime keeps what was sampled."""
    rng, rewritten = random.Random(5), ""
    controls = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    hostile = "".join(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    asked = {"role": "user", "content": "add"}
    for _ in range(count):
        words = "x" + "".join(rng.choices(WORDS, k=3))
        thought = rng.choice(("", f"<think>\n{words}\n</think>\n\n"))
        tools = TOOLS if "tool" in roles else ()
        new = [{"role": role, "content": "x" + "".join(rng.choices(WORDS, k=3)), "tool_call_id": f"call0000{number}",
                "name": "add"} for number, role in enumerate(roles)]  # fmt: skip
        try:
            first = chat.first([asked], tools)
            sampled = tokenizer.encode(f"{thought}{words}", add_special_tokens=False)
            sampled = sampled[: rng.randint(1, len(sampled))] if rng.random() < 0.2 else sampled
            plain = chat.behind([*first, *sampled], new, tools)
            acting = chat.behind([*first, *sampled], [{**each, "content": hostile} for each in new], tools)
        except SlimeError as error:
            return str(error), rewritten
        opened = [[token for token in ids if token in controls] for ids in (plain, acting)]
        if opened[0] != opened[1]:
            return "a control token in a message acts", rewritten
        if roles == ("user",) and not rewritten:
            kept = [*first, *sampled, *plain]
            whole = chat.first([asked, {"role": "assistant", "content": tokenizer.decode(sampled)}, *new], tools)
            rewritten = _difference(tokenizer, kept, whole, thought)
    return "", rewritten


def _difference(tokenizer: Any, kept: Sequence[int], whole: Sequence[int], thought: str) -> str:
    """A sentence on the first token that differs; empty if none does."""
    pairs = zip([*kept, None], [*whole, None], strict=False)
    place = next((number for number, (one, other) in enumerate(pairs) if one != other), None)
    if place is None:
        return ""
    was, now = (repr(tokenizer.decode(ids[place : place + 1])) for ids in (kept, whole))
    after = " after thinking" if thought else ""
    return f"rendered whole, the template would write token {place} as {now} and not {was}{after}; slime keeps it"
