"""What a plan asks of a model folder in a process aside, asked in this one."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from slime.config.paths import resolve
from slime.config.schema import DataConfig
from slime.data.first_look import (
    id_problems,
    keyword_problems,
    look_at_demonstrations,
    look_at_prompts,
    template_problems,
)
from slime.data.rows import first_rows
from slime.errors import SlimeError

NUM_ROWS = 128
"""Of the embeddings of glm4-tiny."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), tmp_path / "model"))


def told(folder: Path) -> list[str]:
    return [str(problem) for problem in template_problems(folder, {})]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[0]['content'] }}", None),
        ("one\n{% if %}", "cannot be compiled: .* [(]line 2[)]"),
        ("one\n{{ messages[0].nothing.more }}", "fails at one message of a user: .*nothing"),
        ("{% generation %}{{ messages }}{% endgeneration %}", None),  # transformers' own tag: the run reads it
        ("{{ raise_exception('no') }}", None),  # rows will tell
        ("{{ '' }}", "writes nothing"),
        (" \n", "the tokenizer has no chat template"),
    ],
)
def test_a_template_is_compiled_and_rendered(folder: Path, template: str, says: str | None) -> None:
    (folder / "chat_template.jinja").write_text(template)
    found = told(folder)
    assert len(found) == (says is not None)
    assert says is None or re.search(says, found[0]), found


def test_a_template_that_is_no_text(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{")
    [found] = told(folder)
    assert "the chat template is no text" in found


def test_ids_that_the_embeddings_have_no_row_for(folder: Path) -> None:
    assert list(id_problems(folder, NUM_ROWS)) == []
    found = [str(problem) for problem in id_problems(folder, 20)]
    assert any("tokenizer.json" in problem for problem in found), found


def test_keywords_of_a_template(folder: Path) -> None:
    assert list(keyword_problems(DataConfig(path="x"), folder)) == []
    [problem] = keyword_problems(DataConfig(path="x", chat_template_kwargs={"enable_thinkin": True}), folder)
    assert problem.where == "data.chat_template_kwargs.enable_thinkin"


def test_rows_are_tokenized(folder: Path, tmp_path: Path) -> None:
    data = DataConfig(path=str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+2=", "label": "3"}\n')
    rows = first_rows(Path(data.path), 9)
    look_at_prompts(rows, data, folder, 32, NUM_ROWS)
    with pytest.raises(SlimeError, match=r"rows\.jsonl line 1"):
        look_at_prompts(rows, data, folder, 32, 20)
    (tmp_path / "sft.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "3"}]}\n'
    )
    shown = first_rows(tmp_path / "sft.jsonl", 9)
    look_at_demonstrations(shown, data, folder, 64, NUM_ROWS, pairs=False)
    with pytest.raises(SlimeError, match=r"sft\.jsonl line 1"):
        look_at_demonstrations(shown, data, folder, 64, 20, pairs=False)
