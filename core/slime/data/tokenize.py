"""Chat messages to token ids, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import resource
import signal
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from slime.aside import limit_growth, step
from slime.data.tokenizer_files import no_chat_template, read_object, tokenizer_problems
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.foreign import foreign
from slime.imports import absent, importing
from slime.time_limit import Handler
from slime.types import Message

Tokenizer = Any
"""A `transformers.PreTrainedTokenizerBase`; transformers is imported late and untyped here."""
RENDER_S, RENDER_BYTES = 5.0, 2**31
"""Limits of a chat template, a program of the checkpoint's, for one conversation."""
ENCODE_S = 5.0
"""Seconds that a tokenizer may take for a batch of texts in a plan; a usual one takes some tenths."""
FAULTS = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Errors of a chat template's filter that met a value which it cannot take."""
BATCH, OF_A_TEXT = 300_000, 300
"""Characters that are encoded at once, and how many each text counts beside its own: while a batch lasts, each token
takes some hundred bytes."""
GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Names, in tokenizer_config.json, of the class that takes all it knows from tokenizer.json."""


def import_tokenizers(folder: Path) -> None:
    """Do transformers' part of the first `load_tokenizer`, which takes most of its time."""
    with importing():
        _tokenizer_class(folder)


def _tokenizer_class(folder: Path) -> Any:
    """The class that reads the folder's tokenizer: `AutoTokenizer`, or, where that would choose the generic class, this
    class at once, whose import takes 3 s less because it leaves out models, torch's compiler and torch."""
    if is_generic(folder):
        with _gguf_on_demand():
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast
    from transformers import AutoTokenizer

    return AutoTokenizer


def _gguf_on_demand() -> AbstractContextManager[None]:
    """What is imported in the block and wants transformers' reader of GGUF files gets one that is imported when it is
    called, for that one imports torch."""
    name = "transformers.modeling_gguf_pytorch_utils"

    def load(*args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(name).load_gguf_checkpoint(*args, **kwargs)

    stand_in = ModuleType(name)
    stand_in.load_gguf_checkpoint = load  # type: ignore[attr-defined]
    return absent(name, stand_in)


def is_generic(folder: Path) -> bool:
    """Whether tokenizer.json alone says how the folder's tokenizer works. False also where transformers is missing."""
    config = read_object(folder / "tokenizer_config.json")
    model_type = read_object(folder / "config.json").get("model_type")
    return config.get("tokenizer_class") in GENERIC and "auto_map" not in config and not _has_its_own(model_type)


def _has_its_own(model_type: object) -> bool:
    """Whether transformers has a tokenizer class for this type of model, which may overrule what a checkpoint names."""
    library = importlib.util.find_spec("transformers")
    if library is None:
        return True
    assert library.origin is not None, "a package with an __init__.py has one"
    return Path(library.origin).with_name("models").joinpath(f"{model_type}/tokenization_{model_type}.py").exists()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The Hugging Face tokenizer of a checkpoint folder; code that the folder brings is not run.

    Raises:
        SlimeError: the folder holds no loadable tokenizer, or one without a chat template.
    """
    for problem in tokenizer_problems(folder):
        raise problem
    tokenizers = _tokenizer_class(folder)
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        tokenizer = tokenizers.from_pretrained(os.fspath(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises nothing more special
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        todo = "The folder needs tokenizer.json and tokenizer_config.json (or the files its tokenizer class names)."
        raise SlimeError(f"the tokenizer does not load: {reason}", where=str(folder), todo=todo) from error
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
        raise no_chat_template(tokenizer.name_or_path)


def render(
    tokenizer: Tokenizer, messages: Sequence[Message], where: str, kwargs: Mapping[str, Any], *, prompt: bool
) -> str:
    """Messages as the text the model reads.

    Args:
        where: the row, for the error.
        kwargs: further keywords of the chat template.
        prompt: whether the text ends with the opening of the assistant's turn.

    Raises:
        UnusableTemplate: the chat template takes too much, or reaches for what is not its own.
        SlimeError: it refuses these messages.
    """
    from jinja2 import TemplateError, TemplateSyntaxError
    from jinja2.exceptions import SecurityError

    try:
        with bounded_template(tokenizer.name_or_path, where):
            text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt, **kwargs)
    except SecurityError as error:
        raise untrusted(tokenizer.name_or_path, where, str(error).rstrip(".")) from None
    except TemplateSyntaxError as error:
        what = f"the chat template cannot be compiled: {str(error.message).rstrip('.')} (line {error.lineno})"
        raise UnusableTemplate(what, where=tokenizer.name_or_path, todo="Mend its chat_template.jinja.") from None
    except (TemplateError, *FAULTS) as error:
        todo = "Mend the row's messages, or data.chat_template_kwargs."
        if type(error) is not TemplateError:  # which a template raises itself
            todo = f"Mend the row's messages, data.chat_template_kwargs, or the template in {tokenizer.name_or_path}."
        what = f"the chat template refuses the messages: {error}{line_of(error)}"
        raise SlimeError(what, where=where, todo=todo) from None
    assert isinstance(text, str), "tokenize=False gives text"
    return text


def line_of(error: BaseException) -> str:
    """The line where a template failed, in brackets."""
    told = traceback.walk_tb(error.__traceback__)
    # As Jinja calls a template that has no file.
    lines = [line for frame, line in told if frame.f_code.co_filename == "<template>"]
    return f" (line {lines[-1]})" if lines else ""


class UnusableTemplate(SlimeError):
    """A chat template takes too much or reaches for what is not its own, whatever the messages are."""


class _TooLong(Exception):
    """A template that goes on and on."""


def _stop(number: int, frame: object) -> None:
    raise _TooLong(f"it takes more than {RENDER_S:g} s of a processor")


_STOPS = Handler(signal.SIGVTALRM, _stop)


@contextmanager
def bounded_template(folder: str, where: str) -> Iterator[None]:
    """Bound the processor time and the memory of what the block does with a chat template; `where`: the row.

    Raises:
        UnusableTemplate: it takes more.
    """
    step(RENDER_S + 1, untrusted(folder, where))  # in a plan, for what signals do not interrupt
    try:
        if threading.current_thread() is not threading.main_thread():  # which alone has signals
            yield
            return
        with _STOPS:
            before = limit_growth(RENDER_BYTES)
            # Wall-clock time would fail good templates on a busy machine.
            signal.setitimer(signal.ITIMER_VIRTUAL, RENDER_S)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                resource.setrlimit(resource.RLIMIT_AS, before)
    except (_TooLong, MemoryError, RecursionError, OverflowError) as error:
        reason = str(error).rstrip(".") or f"it takes more than {human_bytes(RENDER_BYTES)} or never ends"
        raise untrusted(folder, where, reason) from None


def untrusted(folder: str, where: str, reason: str = "") -> UnusableTemplate:
    todo = f"Use a checkpoint whose template you trust: see chat_template.jinja in {folder}."
    what = f"the chat template cannot be used{f': {reason}' if reason else ''}"
    return UnusableTemplate(what, where=where or folder, todo=todo)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Token ids of each rendered text; the template has already placed the special tokens.

    Raises:
        SlimeError: the tokenizer's library fails, or does not come back.
    """
    for batch in _batches(texts):
        step(ENCODE_S, _unusable(tokenizer, "it does not encode its texts"))
        with foreign(partial(_unusable, tokenizer), "it fails: {}", "to encode texts"):
            encoded = _encoded(tokenizer, batch)
        yield from encoded


def _encoded(tokenizer: Tokenizer, batch: list[str]) -> Iterable[list[int]]:
    if (library := _library(tokenizer)) is None:
        found = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        ids: Iterable[list[int]] = found["input_ids"]
        return ids
    settings = (library.truncation, library.padding, library.encode_special_tokens)
    if settings != (None, None, tokenizer.split_special_tokens):  # for it cannot be changed while a thread encodes
        library.no_truncation()
        library.no_padding()
        library.encode_special_tokens = tokenizer.split_special_tokens
    # Without places in the text. Lists are made one by one: all at once they take more memory.
    return (each.ids for each in library.encode_batch_fast(batch, add_special_tokens=False))


def _unusable(tokenizer: Tokenizer, what: str) -> SlimeError:
    todo = "Use a checkpoint whose tokenizer.json you trust."
    return SlimeError(f"the tokenizer cannot be used: {what}", where=str(tokenizer.name_or_path), todo=todo)


def decode(tokenizer: Tokenizer, tokens: Sequence[int], *, special: bool = True) -> str:
    """Text of tokens; `special`: that of special ones too."""
    library = _library(tokenizer)
    if library is None or tokenizer.clean_up_tokenization_spaces:
        library = tokenizer
    text: str = library.decode(tokens, skip_special_tokens=not special)
    return text


def _library(tokenizer: Tokenizer) -> Any:
    """The tokenizer that another one hands on to, where that does nothing else: to ask that at once takes half the
    time, for a long text and for a few words alike. None: it does something of its own."""
    return tokenizer.backend_tokenizer if _adds_nothing(type(tokenizer)) else None  # type: ignore[arg-type]


@cache
def _adds_nothing(kind: type) -> bool:
    above = [number for number, each in enumerate(kind.__mro__) if each.__name__ in GENERIC]
    asked = ("__call__", "_encode_plus", "_convert_encoding", "_switch_to_input_mode", "decode", "_decode")
    return bool(above) and not any(name in vars(each) for each in kind.__mro__[: above[0]] for name in asked)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """All texts, as many at once as `BATCH` allows, and one at least."""
    batch: list[str] = []
    left = BATCH
    for text in texts:
        size = len(text) + OF_A_TEXT
        if batch and size > left:
            yield batch
            batch, left = [], BATCH
        batch.append(text)
        left -= size
    if batch:
        yield batch
