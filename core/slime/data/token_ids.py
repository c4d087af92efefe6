"""Token ids behind the model's embeddings, which have no row there: a trainer that splits the embeddings would take
zeros for one, and an engine dies of it. Who meets it first refuses it: the plan, a run that reads its rows, a program
that asks an engine, a trainer before its step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError

if TYPE_CHECKING:
    from slime.data.tokenize import Tokenizer

SPECIAL_IDS = ("eos_token_id", "bos_token_id", "pad_token_id")
"""Fields of config.json and generation_config.json."""
_TODO = "Take the tokenizer and the weights of one model, or resize its embeddings (resize_token_embeddings)."


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer for this module, as a tokenizer.json says it."""

    ids: Mapping[str, int]
    added_tokens_decoder: Mapping[int, Any]

    @classmethod
    def of(cls, file: Mapping[str, Any]) -> Vocabulary:
        model, added = file.get("model"), file.get("added_tokens")
        found = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(found, list):  # pieces with their scores, in the order of their ids
            found = {repr(piece): number for number, piece in enumerate(found)}
        told = [each for each in (added if isinstance(added, list) else ()) if isinstance(each, dict)]
        tokens = {each["id"]: SimpleNamespace(**each) for each in told if isinstance(each.get("id"), int)}
        ids = {str(getattr(token, "content", number)): number for number, token in tokens.items()}
        words = found.items() if isinstance(found, dict) else ()
        return cls({text: number for text, number in words if isinstance(number, int)} | ids, tokens)

    def get_vocab(self) -> Mapping[str, int]:
        return self.ids


def behind(tokenizer: Tokenizer, num_rows: int) -> dict[int, str]:
    """Tokens of a tokenizer without a row in the embeddings, by id; empty for nearly every model."""
    return {number: text for text, number in tokenizer.get_vocab().items() if number >= num_rows}


def reachable_problem(tokenizer: Tokenizer, num_rows: int, where: str) -> SlimeError | None:
    """Tokens without a row that any text may become: those of the vocabulary itself, and those added for users' words.

    Special ones may lie behind the embeddings: published models have them (of images, in models of text alone). No text
    becomes one unless a template writes it or `data.control_tokens` allows it, and then the row is refused.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if getattr(token, "special", False)}
    found = {number: text for number, text in behind(tokenizer, num_rows).items() if number not in special}
    if not found:
        return None
    count = f"{len(found)} tokens" if len(found) > 1 else "a token"
    last = max(found)
    what = f"it has {count} behind the model's embeddings, which have {num_rows} rows: the last, {_shown(last, found)}"
    return SlimeError(what, where=where, todo=_TODO)


def special_problems(fields: Mapping[str, Any], num_rows: int, where: str) -> Iterator[SlimeError]:
    """Ids of a config.json or generation_config.json that have no row."""
    for name in SPECIAL_IDS:
        value = fields.get(name)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number >= num_rows:
                what = f"'{name}' is {number}, and the model's embeddings have {num_rows} rows"
                yield SlimeError(what, where=where, todo=_TODO)
                break


def require_rows(encoded: Iterable[tuple[str, Sequence[int]]], tokens_behind: Mapping[int, str], num_rows: int) -> None:
    """Refuse a sequence with a token that is `behind`; `encoded` has where each comes from, and its ids."""
    for where, ids in encoded if tokens_behind else ():
        if found := tokens_behind.keys() & set(map(int, ids)):
            what = f"token {_shown(min(found), tokens_behind)} has no row in the model's embeddings, which have"
            raise SlimeError(f"{what} {num_rows}", where=where, todo=_TODO)


def strange(ids: Sequence[int], num_rows: int) -> int | None:
    """The first id that is none of the model's: negative, or behind its embeddings."""
    if not ids or (min(ids) >= 0 and max(ids) < num_rows):
        return None
    return next(number for number in ids if not 0 <= number < num_rows)


def _shown(number: int, texts: Mapping[int, str]) -> str:
    return f"{number} ({texts[number]!r:.60})"
