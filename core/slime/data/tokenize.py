"""Chat messages to token ids, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slime.errors import SlimeError
from slime.imports import importing
from slime.types import Message

Tokenizer = Any
"""A `transformers.PreTrainedTokenizerBase`; transformers is imported late and untyped here."""
BATCH = 1000
"""Texts that are encoded at once: while a batch lasts, each token takes some hundred bytes."""
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names, in tokenizer_config.json, of the class that takes all it knows from tokenizer.json."""


def import_tokenizers(folder: Path) -> None:
    """What takes most of the time of the first `load_tokenizer`: transformers' part of it."""
    with importing():
        _tokenizer_class(folder)


def _tokenizer_class(folder: Path) -> Any:
    """What reads the folder's tokenizer: `AutoTokenizer`, or, where that would choose the generic class, this class at
    once, whose import takes 2 s less because it leaves out models and torch's compiler."""
    config = _read_json(folder / "tokenizer_config.json")
    model_type = _read_json(folder / "config.json").get("model_type")
    if config.get("tokenizer_class") in GENERIC and "auto_map" not in config and not _has_its_own(model_type):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _has_its_own(model_type: object) -> bool:
    """Whether transformers has a tokenizer class for this type of model, which may overrule what a checkpoint names."""
    library = importlib.util.find_spec("transformers")
    assert library is not None, "it is a dependency"
    assert library.origin is not None, "a package with an __init__.py has one"
    return Path(library.origin).with_name("models").joinpath(f"{model_type}/tokenization_{model_type}.py").exists()


def _read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file, or none that can be read: whoever loads the tokenizer tells."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load_tokenizer(folder: Path) -> Tokenizer:
    """The Hugging Face tokenizer of a checkpoint folder; code that the folder brings is not run.

    Raises:
        SlimeError: the folder holds no loadable tokenizer, or one without a chat template.
    """
    tokenizers = _tokenizer_class(folder)
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = tokenizers.from_pretrained(os.fspath(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        todo = "The folder needs tokenizer.json and tokenizer_config.json (or the files its tokenizer class names)."
        raise SlimeError(f"the tokenizer does not load: {reason}", where=str(folder), todo=todo) from None
    require_chat_template(tokenizer)
    return tokenizer


def end_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Token ids that end a response: the tokenizer's own, and those that the checkpoint's generation and model config
    name (an id or a list of them), where SGLang takes them from."""
    found = {tokenizer.eos_token_id}
    for name in ("generation_config.json", "config.json"):
        path = Path(tokenizer.name_or_path, name)
        value = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        found.update(value if isinstance(value, list) else [value])
    return frozenset(found - {None})


def require_chat_template(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that cannot turn chat messages into text."""
    if not tokenizer.chat_template:
        todo = "Put the model's chat_template.jinja into the folder."
        raise SlimeError("the tokenizer has no chat template", where=str(tokenizer.name_or_path), todo=todo)


def render(
    tokenizer: Tokenizer, messages: Sequence[Message], where: str, kwargs: Mapping[str, Any], *, prompt: bool
) -> str:
    """Messages as the text the model reads.

    Args:
        tokenizer: with a chat template.
        messages: `{"role": ..., "content": ...}` each.
        where: the row, for the error.
        kwargs: further keywords of the chat template.
        prompt: whether the text ends with the opening of the assistant's turn.

    Raises:
        SlimeError: the chat template refuses these messages.
    """
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt, **kwargs)
    except (TemplateError, TypeError, ValueError) as error:  # the last two: a filter met a value that it cannot take
        todo = "Mend the row's messages, or data.chat_template_kwargs."
        raise SlimeError(f"the chat template refuses the messages: {error}", where=where, todo=todo) from None
    assert isinstance(text, str), "tokenize=False gives text"
    return text


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Token ids of each rendered text; the template has already placed the special tokens."""
    for start in range(0, len(texts), BATCH):
        batch = list(texts[start : start + BATCH])
        encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        yield from encoded["input_ids"]
