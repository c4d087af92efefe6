"""Tokens without a row in the embeddings. Which ids a tokenizer gives is what transformers makes of the same files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slime.compose.compose import examine
from slime.data.token_ids import Vocabulary, behind, reachable_problem, strange
from slime.data.tokenize import load_tokenizer
from slime.errors import SlimeError
from slime.run_data import Data

NUM_ROWS = 128
TOKEN = "<extra_39>"
Change = Callable[[PreTrainedTokenizerFast], Any]


@pytest.fixture
def folder(tokenizer_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tokenizer_folder, tmp_path / "model"))


def change(folder: Path, work: Change) -> PreTrainedTokenizerFast:
    """As users do it: with transformers, and the embeddings left as they are."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    work(tokenizer)
    tokenizer.save_pretrained(folder)
    return tokenizer


def add(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_tokens([f"<extra_{number}>" for number in range(40)])


def add_special(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<extra_{number}>" for number in range(40)]})


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rows(path: Path, text: str) -> Path:
    asked = {"role": "user", "content": f"{text}1+2="}
    said = [asked, {"role": "assistant", "content": "3"}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in ({"prompt": [asked], "label": "3", "messages": said},)))
    return path


def words(folder: Path, *more: str) -> list[str]:
    return ["+model=glm4-tiny", "+cluster=local", f"model.path={folder}", *more]


def told(folder: Path, *more: str) -> str:
    """By a plan; a run that reads all rows says something of the same folder, or neither does."""
    composed = examine(words(folder, *more))
    if not composed.problems:
        Data(composed.cfg, load_tokenizer(folder))
        return ""
    with pytest.raises(SlimeError):
        Data(composed.cfg, load_tokenizer(folder))
    return "\n".join(map(str, composed.problems))


def test_added_tokens_that_any_text_may_become(folder: Path) -> None:
    assert told(folder) == ""
    last = max(change(folder, add).get_vocab().values())
    assert last >= NUM_ROWS
    found = told(folder)
    assert f"which have {NUM_ROWS} rows: the last, {last} ('{TOKEN}')" in found
    assert "\n" not in found, "it is said once, not of each file"
    edit(folder / "config.json", vocab_size=last + 1)
    assert told(folder) == "", "the embeddings were resized"


def test_special_ones_are_left_alone_until_something_writes_them(folder: Path, tmp_path: Path) -> None:
    """Gemma 3 of text alone is published with <image_soft_token> behind its embeddings."""
    number = change(folder, add_special).convert_tokens_to_ids(TOKEN)
    assert told(folder) == ""
    assert "holds the control token" in told(folder, f"data.path={rows(tmp_path / 'rows.jsonl', TOKEN)}")
    for key in ("data", "eval"):
        path = rows(tmp_path / f"{key}.jsonl", TOKEN)
        found = told(folder, f"{key}.path={path}", "data.control_tokens=allow")
        assert f"{path} line 1: token {number} ('{TOKEN}') has no row" in found
    path = rows(tmp_path / "sft.jsonl", TOKEN)
    found = told(folder, f"sft.path={path}", "sft.num_steps=1", "data.control_tokens=allow")
    assert f"sft.path, {path} line 1: token {number}" in found
    assert told(folder, f"data.path={rows(path, '')}", "data.control_tokens=allow") == ""


def test_a_template_that_writes_one(folder: Path) -> None:
    change(folder, add_special)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + TOKEN)
    assert f"('{TOKEN}') has no row in the model's embeddings, which have {NUM_ROWS}" in told(folder)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("field", ["eos_token_id", "pad_token_id", "bos_token_id"])
def test_ids_that_the_folder_names(folder: Path, file: str, field: str) -> None:
    for value in (NUM_ROWS, [1, NUM_ROWS]):
        edit(folder / file, **{field: value})
        assert f"{file}: '{field}' is {NUM_ROWS}, and the model's embeddings have {NUM_ROWS} rows" in "\n".join(
            map(str, examine(words(folder)).problems)
        )
    edit(folder / file, **{field: NUM_ROWS - 1})
    assert not examine(words(folder)).problems


def test_of_a_class_of_its_own_the_plan_reads_the_vocabulary(folder: Path) -> None:
    """It cannot render rows there; what the run finds in them is the run's to say."""
    change(folder, add)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    assert f"({TOKEN!r})" in "\n".join(map(str, examine(words(folder)).problems))


@pytest.mark.parametrize("kind", ["BPE", "WordLevel", "WordPiece", "Unigram"])
def test_the_vocabulary_of_a_file_is_that_of_the_library(kind: str, tmp_path: Path) -> None:
    texts = ["<unk>", *map(chr, range(97, 123))]
    ids = {text: number for number, text in enumerate(texts)}
    made: dict[str, Callable[[], Any]] = {
        "BPE": lambda: models.BPE(ids, [], unk_token="<unk>"),
        "WordLevel": lambda: models.WordLevel(ids, unk_token="<unk>"),
        "WordPiece": lambda: models.WordPiece(ids, unk_token="<unk>"),
        "Unigram": lambda: models.Unigram([(text, -1.0) for text in texts], 0, False),
    }
    library = Library(made[kind]())
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_tokens(["<one>"])
    library.add_special_tokens(["<two>"])
    library.save(str(tmp_path / "tokenizer.json"))
    read = Vocabulary.of(json.loads((tmp_path / "tokenizer.json").read_text()))
    assert sorted(read.get_vocab().values()) == sorted(library.get_vocab().values())
    for num_rows in (26, 27, 28, 29):
        assert behind(read, num_rows).keys() == {n for n in library.get_vocab().values() if n >= num_rows}
        # The last one is special: no text becomes it.
        assert (reachable_problem(read, num_rows, "") is None) == (num_rows >= 28)


@pytest.mark.parametrize(
    "content", ["{}", "[]", '{"model": 1, "added_tokens": 2}', '{"added_tokens": [1, {"id": []}, {"id": 5}]}']
)
def test_a_file_of_anything_is_no_traceback(content: str) -> None:
    found = json.loads(content)
    assert reachable_problem(Vocabulary.of(found if isinstance(found, dict) else {}), 6, "") is None


@pytest.mark.parametrize(
    ("ids", "odd"), [([], None), ([0, 5], None), ([0, 6, 7], 6), ([3, -1, 9], -1), ((2**40,), 2**40)]
)
def test_the_first_strange_id(ids: Any, odd: int | None) -> None:
    assert strange(ids, 6) == odd
