"""Folders of models and files of rows that somebody damaged, or made to do harm: each is one line, soon."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime import command
from slime.config.paths import resolve

TINY = "pkg://slime_plugin_qwen3/assets/qwen3-tiny"
WORDS = ["+model=qwen3-tiny", "+cluster=local"]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
ROW = json.dumps({"prompt": "x" * 25 + "z", "label": "1"}) + "\n"
TRUST = "Use a checkpoint whose template you trust: see chat_template.jinja in {folder}."
Harm = Callable[[Path], object]


def fields(**values: Any) -> Harm:
    def harm(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return harm


def tokenizer(**values: Any) -> Harm:
    def harm(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **values}))

    return harm


def split(pattern: str) -> Harm:
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return tokenizer(pre_tokenizer=rule)


def content(name: str, data: str | bytes) -> Harm:
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def in_place_of(name: str, make: Callable[[Path], object]) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return harm


def template(text: str) -> Harm:
    return content("chat_template.jinja", text)


def rows(data: str | bytes) -> Harm:
    return content("rows.jsonl", data)


def no_end(file: Path) -> None:
    file.symlink_to("/dev/zero")


TEMPLATES = {
    "loops": template("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
    "a power in C": template("{{ (messages|length + 8) ** (9 ** 9) }}"),
    "a constant power": template("{{ 9 ** (9 ** 9) }}"),
    "a long text": template("{{ messages[0].content * 10000000000 }}"),
    "a constant long text": template("{{ 'x' * 10000000000 }}"),
    "a long list": template("{{ (range(99999)|list * 100000)|length }}"),
    "a wide field": template("{{ '%999999999999d' % messages|length }}"),
    "a constant wide field": template("{{ 'a'.center(99999999999) }}"),
    "recursion": template("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
    "brackets": template("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"),
    "a class": template("{{ ''.__class__.__mro__ }}"),
    "globals": template("{{ raise_exception.__globals__['__builtins__'] }}"),
}
FOLDERS = {
    "no UTF-8 as template": (content("chat_template.jinja", b"\xff\xfe"), "{folder}/chat_template.jinja: the chat te"),
    "no template": (template("{% for %}"), "{folder}/chat_template.jinja: the chat template cannot be compiled: "),
    "an empty template": (template(""), "{folder}: the tokenizer has no chat template"),
    "an endless template": (in_place_of("chat_template.jinja", no_end), "{folder}/chat_template.jinja: it is no file"),
    "a folder as template": (in_place_of("chat_template.jinja", Path.mkdir), "{folder}/chat_template.jinja: it is no "),
    "a pipe as template": (in_place_of("chat_template.jinja", os.mkfifo), "{folder}/chat_template.jinja: it is no fil"),
    "a pointer as template": (template(POINTER), "{folder}/chat_template.jinja: it is a pointer of Git LFS"),
    "an endless tokenizer": (in_place_of("tokenizer.json", no_end), "{folder}/tokenizer.json: it is no file"),
    "a pipe as tokenizer": (in_place_of("tokenizer.json", os.mkfifo), "{folder}/tokenizer.json: it is no file"),
    "a pointer as tokenizer": (content("tokenizer.json", POINTER), "{folder}/tokenizer.json: it is a pointer of Git L"),
    "a list as tokenizer": (content("tokenizer.json", "[]"), "{folder}/tokenizer.json: is torn: it does not end as JS"),
    "an empty tokenizer": (content("tokenizer.json", ""), "{folder}/tokenizer.json: is torn: it does not end as JSON"),
    "a deep tokenizer": (
        content("tokenizer.json", '{"a":' + "[" * 200_000 + "]" * 200_000 + "}"),
        "{folder}/tokenizer.json: it holds no tokenizer (",
    ),
    "a torn pattern": (split("(?:a"), "{folder}/tokenizer.json: it holds no tokenizer ("),
    "a pattern without end": (split(r"(x+x+)+y"), "{folder}: the tokenizer cannot be used: it fails: PanicException: "),
    "a normalizer without end": (
        tokenizer(normalizer={"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 10**6}),
        "{folder}: the tokenizer cannot be used: it does not encode its texts: it takes more than",
    ),
    "a token of a number below 0": (tokenizer(added_tokens=[{"id": -1}]), "{folder}/tokenizer.json: it holds no token"),
    "ends of another kind": (
        content("generation_config.json", '{"eos_token_id": {"a": 1}}'),
        "{folder}/generation_config.json: 'eos_token_id' must be a token id or a list of them, got {{\"a\": 1}}. ",
    ),
    "settings of a list": (content("tokenizer_config.json", "[]"), "{folder}/tokenizer_config.json: cannot be read ("),
    "deep settings": (content("tokenizer_config.json", "[" * 200_000), "{folder}/tokenizer_config.json: cannot be rea"),
    "endless settings": (in_place_of("tokenizer_config.json", no_end), "{folder}/tokenizer_config.json: it is no file"),
    "an endless config": (in_place_of("config.json", no_end), "{folder}: there is no config.json"),
    "a pipe as config": (in_place_of("config.json", os.mkfifo), "{folder}: there is no config.json"),
    "a folder as config": (in_place_of("config.json", Path.mkdir), "{folder}: there is no config.json"),
    "a deep config": (content("config.json", "[" * 200_000), "{folder}/config.json: not JSON (maximum recursion depth"),
    "no UTF-8 as config": (content("config.json", b"\xff{}"), "{folder}/config.json: not JSON ("),
    "a pointer as config": (content("config.json", POINTER), "{folder}/config.json: not JSON ("),
    "many digits": (content("config.json", '{"vocab_size": ' + "9" * 5000 + "}"), "{folder}/config.json: not JSON (Ex"),
    "a command as size": (fields(hidden_size="128; rm"), "{folder}/config.json: 'hidden_size' must be a whole number"),
    "no number": (fields(rope_theta=float("nan")), "{folder}/config.json: 'rope_theta' must be a positive number, got"),
    "a list as type": (fields(model_type=["a"]), "{folder}/config.json: 'model_type' must be a text"),
    "a family of nobody": (fields(model_type="mamba"), "says model_type 'mamba'. No installed plugin has that one: "),
    "a billion layers": (fields(num_hidden_layers=10**9), "{folder}/config.json: 'num_hidden_layers' must be a number"),
    "a list as rotary": (fields(rope_parameters=[1]), "{folder}/config.json: 'rope_parameters' must be an object"),
    "a strange field": (fields(strange={"a": [1] * 100}), "{folder}/config.json: 'strange: {{'a': [1, 1, 1, "),
    "a strange rotary": (fields(rope_parameters={"rope_type": "x"}), "{folder}/config.json: 'rope_parameters.rope_t"),
    "a rotary of two": (
        fields(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        "{folder}/config.json: 'rope_scaling.rope_type: yarn' is not supported for this model family. Supported: def",
    ),
    "a rotary's surplus": (
        fields(rope_parameters={"rope_type": "default", "factor": 4.0}),
        "{folder}/config.json: 'rope_parameters.factor: 4.0' is not supported for this model family",
    ),
    "two strange fields": (
        fields(attention_bias=True, use_sliding_window=True, logit_scale=2.0),
        "{folder}/config.json: 'attention_bias: True' is not supported for this model family; 'use_sliding_window:",
    ),
    "no heads": (fields(num_attention_heads=0, head_dim=True), "{folder}/config.json: 'num_attention_heads' must be a"),
    "a text as epsilon": (fields(rms_norm_eps="1e-05"), "{folder}/config.json: 'rms_norm_eps' must be a positive num"),
    "a text as rotary": (fields(rope_scaling="dynamic"), "{folder}/config.json: 'rope_scaling' must be an object, or"),
    "a base class": (
        fields(architectures=["Qwen3Model"]),
        "{folder}/config.json: 'architectures: [\"Qwen3Model\"]' is not the class of this model family that writes "
        'text. Write ["Qwen3ForCausalLM"]',
    ),
    "no class": (fields(architectures=None), "{folder}/config.json: 'architectures: []' is not the class of"),
    "a pipe as rows": (in_place_of("rows.jsonl", os.mkfifo), "data.path, {folder}/rows.jsonl: there are no f"),
    "endless rows": (in_place_of("rows.jsonl", no_end), "data.path, {folder}/rows.jsonl: there are no files"),
    "a circle of links": (
        in_place_of("rows.jsonl", lambda file: file.symlink_to(file)),
        "data.path: there is no '{folder}/rows.jsonl'",
    ),
    "zeros": (rows(b"\0" * 1000), "data.path, {folder}/rows.jsonl line 1: not valid JSON"),
    "deep rows": (rows("[" * 100_000 + "\n"), "data.path, {folder}/rows.jsonl line 1: nested more than 100 levels dee"),
    "digits": (rows('{"prompt":"a","label":' + "9" * 100_000 + "}\n"), "data.path, {folder}/rows.jsonl line 1: Exceed"),
    "gzip": (rows(b"\x1f\x8b" + b"\0" * 100), "data.path, {folder}/rows.jsonl line 1: not UTF-8 text"),
    "half a character": (rows('{"prompt":"\\ud800","label":"1"}\n'), "data.path, {folder}/rows.jsonl line 1: holds ha"),
    "a list as role": (
        rows('{"prompt":[{"role":["a"],"content":"x"}],"label":"1"}\n'),
        "data.path, {folder}/rows.jsonl line 1: 'prompt' message 1 has a list as its role",
    ),
    "a long prompt": (
        rows(json.dumps({"prompt": "a" * 5_000_000, "label": "1"}) + "\n"),
        "data.path, {folder}/rows.jsonl line 1: the prompt has 50000",
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's, with a prompt in `rows.jsonl`. A template and a batch have a second, here."""
    monkeypatch.setattr("slime.data.tokenize.RENDER_S", 0.5)
    monkeypatch.setattr("slime.data.tokenize.ENCODE_S", 1.0)
    copied = Path(shutil.copytree(resolve(TINY), tmp_path / "model"))
    rows(ROW)(copied)
    return copied


def words_of(folder: Path) -> list[str]:
    own = [f"model.path={folder}", f"run.dir={folder.parent}", f"data.path={folder}/rows.jsonl"]
    return [*WORDS, *own, "sft.path=null", "sft.num_steps=0"]


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `slime preflight` says, which refuses what is wrong and what is missing alike."""
    assert command.main(["preflight", *words_of(folder)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    return line


def test_the_folder_itself_is_sound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", *words_of(folder)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("harm", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_that_takes_all_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], harm: Harm) -> None:
    harm(folder)
    line = refused(folder, capsys)
    assert "the chat template cannot be used: " in line
    assert line.endswith(TRUST.format(folder=folder))


@pytest.mark.parametrize(("harm", "said"), FOLDERS.values(), ids=FOLDERS)
def test_a_file_that_is_damaged_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], harm: Harm, said: str
) -> None:
    harm(folder)
    assert said.format(folder=folder) in refused(folder, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["loops", "a constant power", "a power in C", "a constant long text"])
def test_a_plan_ends_soon(folder: Path, name: str) -> None:
    """With the limits that users have."""
    TEMPLATES[name](folder)
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-m", "slime", "plan", *words_of(folder)], capture_output=True, text=True)
    assert time.monotonic() - began < 120, "a busy machine takes longer than the 8 s of a free one"
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert "the chat template cannot be used" in ended.stderr
