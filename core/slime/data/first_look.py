"""The first rows of a data set through the model's own tokenizer, for a plan: without transformers, whose import takes
seconds. A run reads all rows with the tokenizer that transformers makes of the same files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slime.aside import step
from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.prompt_rows import conversations
from slime.data.prompts import encode_prompts
from slime.data.rows import Row
from slime.data.token_ids import Vocabulary, behind, reachable_problem, require_rows, special_problems
from slime.data.tokenize import FAULTS, bounded_template, encode, is_generic, line_of, untrusted
from slime.data.tokenizer_files import (
    AGAIN,
    CONFIG,
    GENERIC,
    TEMPLATE,
    no_chat_template,
    read_object,
    tokenizer_problems,
)
from slime.errors import SlimeError, did_you_mean

EXTENSION = re.compile(r"\{%[-+]?\s*generation\b")
"""A tag of transformers', which Jinja does not know: a template that has it is left to the run."""
LOAD_S = 8.0
"""Processor seconds that the files of a tokenizer may take; those of 30 MB take 2."""
GIVEN = {"messages", "tools", "documents", "add_generation_prompt"}
"""Variables of a chat template that a config does not set."""


def keyword_problems(data: DataConfig, folder: Path) -> Iterator[SlimeError]:
    """Keywords that do nothing with this model; none where the tokenizer is not at hand."""
    if (tokenizer := _tokenizer(folder)) is not None:
        yield from tokenizer.unused(data.chat_template_kwargs)


def id_problems(folder: Path, num_rows: int) -> Iterator[SlimeError]:
    """Tokens of the folder that have no row in the model's embeddings, whatever is said with them."""
    for name in ("config.json", "generation_config.json"):
        yield from special_problems(read_object(folder / name), num_rows, str(folder / name))
    if (folder / GENERIC).is_file():
        step(LOAD_S, SlimeError("the tokenizer cannot be used", where=str(folder), todo=AGAIN))
        vocabulary = _tokenizer(folder) or Vocabulary.of(read_object(folder / GENERIC))
        if problem := reachable_problem(vocabulary, num_rows, str(folder / GENERIC)):
            yield problem


def template_problems(folder: Path, keywords: Mapping[str, Any]) -> Iterator[SlimeError]:
    """A chat template that cannot be compiled, or fails at one message of a user, whatever the tokenizer's class."""
    if find_spec("jinja2") is None or any(tokenizer_problems(folder)):
        return
    from jinja2 import TemplateError, TemplateSyntaxError
    from jinja2.exceptions import SecurityError

    config = read_object(folder / CONFIG)
    file = folder / TEMPLATE if (folder / TEMPLATE).is_file() else folder / CONFIG
    text = config.get("chat_template")
    try:
        text = file.read_text(encoding="utf-8") if file.name == TEMPLATE else text
        if not isinstance(text, str):
            return  # several by name: the run chooses
        if not text.strip():
            yield no_chat_template(folder)
            return
        template = ChatTemplate(text, config, str(folder))
        with bounded_template(str(folder), ""):
            written = template.render([{"role": "user", "content": "probe."}], add_generation_prompt=True, **keywords)
        if not written.strip():
            yield SlimeError("the chat template writes nothing", where=str(file), todo=AGAIN)
    except TemplateSyntaxError as error:
        if not EXTENSION.search(str(text)):
            what = f"the chat template cannot be compiled: {str(error.message).rstrip('.')} (line {error.lineno})"
            yield SlimeError(what, where=str(file), todo="Mend that line, or fetch the file again.")
    except SecurityError as error:
        yield untrusted(str(folder), "", str(error).rstrip("."))
    except UnicodeDecodeError as error:
        yield SlimeError(f"the chat template is no text ({error})", where=str(file), todo=AGAIN)
    except (TemplateError, *FAULTS) as error:
        if type(error) is not TemplateError:  # as a template says that it does not take these messages: rows will tell
            what = f"the chat template fails at one message of a user: {error}{line_of(error)}"
            yield SlimeError(what, where=str(file), todo="Mend it, or set data.chat_template_kwargs.")


def look_at_prompts(rows: Sequence[Row], data: DataConfig, folder: Path, max_prompt_tokens: int, num_rows: int) -> None:
    """SlimeError of the first prompt that the run would refuse; nothing where the tokenizer is not at hand."""
    if (tokenizer := _tokenizer(folder)) is not None:
        found = encode_prompts(rows, data, tokenizer, max_prompt_tokens)
        require_rows(found.encoded(), behind(tokenizer, num_rows), num_rows)


def look_at_demonstrations(
    rows: Sequence[Row], data: DataConfig, folder: Path, max_tokens: int, num_rows: int, *, pairs: bool
) -> None:
    """Do as `look_at_prompts`, but for the length of an answer."""
    if (tokenizer := _tokenizer(folder)) is not None:
        chat, places, texts = Chat(tokenizer, data, max_tokens), list[str](), list[str]()
        for row in rows:
            for messages in conversations(row, data.prompt_key, pairs=pairs):
                text = chat.render(messages, row.where, prompt=False)
                if chat.admits(messages, row.where) and len(text) <= chat.max_chars:
                    places.append(row.where)
                    texts.append(text)
        if tokens_behind := behind(tokenizer, num_rows):
            require_rows(zip(places, encode(tokenizer, texts), strict=True), tokens_behind, num_rows)


def _tokenizer(folder: Path) -> _FirstLook | None:
    """None where transformers might read the folder in another way than this module, or a library is missing; or where
    `slime.compose.needs` says what is wrong with the folder."""
    template, file = folder / TEMPLATE, folder / GENERIC
    if not (template.is_file() and file.is_file() and is_generic(folder)) or any(tokenizer_problems(folder)):
        return None
    if any(find_spec(library) is None for library in ("tokenizers", "jinja2")):
        return None
    return _load(folder, template.stat().st_mtime_ns, file.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _load(folder: Path, *changed: int) -> _FirstLook | None:
    from jinja2 import TemplateError

    todo = "Use a checkpoint whose tokenizer.json you trust."
    step(LOAD_S, SlimeError("the tokenizer cannot be used", where=str(folder), todo=todo))
    try:
        return _FirstLook(folder)
    except TemplateError as error:
        if EXTENSION.search((folder / TEMPLATE).read_text(encoding="utf-8")):
            return None
        what = f"it is no chat template ({error})"
        raise SlimeError(what, where=str(folder / TEMPLATE), todo="Fetch the file again.") from error
    except UnicodeDecodeError as error:
        raise SlimeError(f"the tokenizer's files are no text ({error})", where=str(folder), todo=AGAIN) from error
    except (OSError, ValueError, TypeError, KeyError):  # the run will say what is wrong with it
        return None


class _FirstLook:
    """A tokenizer for `slime.data`, made of tokenizer.json and chat_template.jinja alone."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.name_or_path = str(folder)
        self.chat_template = (folder / TEMPLATE).read_text(encoding="utf-8")
        try:
            self._tokenizer = Tokenizer.from_str((folder / GENERIC).read_text(encoding="utf-8"))
        except Exception as error:  # that library has no other
            what = f"it holds no tokenizer ({error})"
            raise SlimeError(what, where=str(folder / GENERIC), todo=AGAIN) from error
        self.added_tokens_decoder = self._tokenizer.get_added_tokens_decoder()
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        self._template = ChatTemplate(self.chat_template, config, self.name_or_path)

    def get_vocab(self) -> Mapping[str, int]:
        return dict[str, int](self._tokenizer.get_vocab())

    def unused(self, keywords: Mapping[str, Any]) -> Iterator[SlimeError]:
        """Keywords that the chat template does not look at."""
        variables = self._template.variables
        own = variables - GIVEN - self._template.special.keys()
        for name in keywords.keys() - variables:
            what, where = "the model's chat template has no such variable", f"data.chat_template_kwargs.{name}"
            todo = did_you_mean(name, own) if own else "Remove it: the template takes none."
            yield SlimeError(what, where=where, todo=todo)

    def apply_chat_template(self, messages: Sequence[Any], *, tokenize: bool, **keywords: Any) -> str:
        assert not tokenize, "text is asked for"
        return self._template.render(messages, **keywords)

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [each.ids for each in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]}


class ChatTemplate:
    """A chat template as transformers compiles it, less `EXTENSION`; `variables` are those that it looks at, `special`
    the tokens of tokenizer_config.json by the names of their variables, an empty text for each that it does not
    name."""

    def __init__(self, text: str, config: Mapping[str, Any], folder: str) -> None:
        import jinja2.ext
        from jinja2 import meta
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        extensions = [jinja2.ext.loopcontrols]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": datetime.now().strftime}
        with bounded_template(folder, ""):  # what is constant is computed while it is compiled
            self._template = environment.from_string(text)
            self.variables = meta.find_undeclared_variables(environment.parse(text)) - environment.globals.keys()
        tokens = {key: value for key, value in config.items() if key.endswith("_token")}
        said = {key: value.get("content") if isinstance(value, dict) else value for key, value in tokens.items()}
        self.special = {name: "" for name in self.variables if name.endswith("_token")} | said

    def render(self, messages: Sequence[Any], **keywords: Any) -> str:
        given = {"messages": messages, "tools": None, "documents": None, **self.special, **keywords}
        return self._template.render(given)


def _to_json(value: Any, ensure_ascii: bool = False, **keywords: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **keywords)


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
