"""What a plan finds in the first rows of the files, by the model's own tokenizer and in little time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.data.first_look import _FirstLook
from slime.data.tokenize import encode, load_tokenizer, render

ROW = {"prompt": [{"role": "user", "content": "1+2="}], "label": "3"}
GLM = "pkg://slime_plugin_glm4/assets/glm4-tiny"
TINY = ["+model=glm4-tiny", "+cluster=local"]


def said(path: Path, *words: str) -> list[str]:
    return [str(problem) for problem in examine([*TINY, f"data.path={path}", *words]).problems]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            {"prompt": [{"role": "human", "content": "1+2="}], "label": "3"},
            "does not know the role 'human' of message 1",
        ),
        ({"prompt": [{"role": "user", "content": "1" * 500}], "label": "3"}, "rollout.max_prompt_tokens=32"),
        ({"prompt": [{"role": "user", "content": "<|user|>"}], "label": "3"}, "holds the control token '<|user|>'"),
    ],
)
def test_first_rows_go_through_the_models_tokenizer(
    row: dict[str, Any], says: str, suffix: str, tmp_path: Path
) -> None:
    [problem] = said(written(tmp_path / f"rows{suffix}", [ROW, row]))
    assert says in problem
    assert "2: " in problem, "the row is named"
    assert said(written(tmp_path / f"good{suffix}", [ROW])) == []


def test_labels_that_the_reward_cannot_compare_with(tmp_path: Path) -> None:
    [problem] = said(written(tmp_path / "rows.jsonl", [ROW | {"label": ["3"]}]))
    assert "data.path: 'label' is a list in" in problem
    [problem] = said(written(tmp_path / "rows.jsonl", [ROW]), "data.label_key=null")
    assert "data.label_key=null leaves it out" in problem


def test_labels_of_a_named_set_are_looked_at_as_its_own_reward_does(tmp_path: Path) -> None:
    rows, other = written(tmp_path / "rows.jsonl", [ROW]), written(tmp_path / "other.jsonl", [ROW | {"label": ["3"]}])
    held_out = [f"eval.path={written(tmp_path / 'held.jsonl', [ROW | {'label': '4'}])}", f"eval.sets.more.path={other}"]
    [problem] = said(rows, *held_out)
    assert "eval.sets.more.path: 'label' is a list in" in problem
    assert said(rows, *held_out, "eval.sets.more.reward=gpqa") == []
    [problem] = said(rows, *held_out, "eval.sets.more.label_key=null")
    assert "reward=arithmetic compares with a label: eval.sets.more.label_key=null leaves it out" in problem


def test_a_demonstration_of_an_unknown_role(tmp_path: Path) -> None:
    turns = [{"role": "human", "content": "1+2="}, {"role": "assistant", "content": "3"}]
    file = written(tmp_path / "sft.jsonl", [{"messages": turns}])
    problems = [str(problem) for problem in examine([*TINY, f"sft.path={file}"]).problems]
    assert ["does not know the role 'human'" in problem for problem in problems] == [True]


def test_held_out_prompts_are_not_trained_on(tmp_path: Path) -> None:
    written(tmp_path / "part-0.jsonl", [ROW])
    other = written(tmp_path / "part-1.jsonl", [ROW])
    (tmp_path / "link.jsonl").symlink_to(other)
    for data in (other, tmp_path / "part-*.jsonl"):
        [problem] = said(data, f"eval.path={tmp_path / 'link.jsonl'}")
        assert problem.startswith(
            f"data.path, eval.path: both read {other}: the run would train on its held-out prompts"
        )
    assert said(tmp_path / "part-0.jsonl", f"eval.path={other}") == []


def test_the_first_look_reads_as_transformers_does(tokenizer_folder: Path) -> None:
    whole, look = load_tokenizer(tokenizer_folder), _FirstLook(tokenizer_folder)
    for prompt in (True, False):
        turns = [{"role": "user", "content": "1+2=ä"}, {"role": "assistant", "content": "3"}]
        texts = [render(each, turns, "", {}, prompt=prompt) for each in (whole, look)]
        assert texts[0] == texts[1]
        assert list(encode(whole, texts)) == list(encode(look, texts))
    assert look.get_vocab() == whole.get_vocab()
    assert {number: token.content for number, token in look.added_tokens_decoder.items()} == {
        number: token.content for number, token in whole.added_tokens_decoder.items()
    }


def test_a_plan_does_so_without_transformers() -> None:
    looks = "from slime.compose.data_files import data_problems; assert not [*data_problems(cfg)]"  # in a process aside
    code = f"import sys; from slime.compose.compose import compose; cfg = compose({TINY}); {looks}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tokenizers" in found
    assert not {"transformers", "torch", "pyarrow", "numpy"} & set(found)


@pytest.mark.parametrize(
    ("template", "todo"),
    [
        ("", "Remove it: the template takes none."),
        (
            "{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}",
            "Did you mean 'enable_thinking'?",
        ),
    ],
)
def test_a_keyword_that_the_template_does_not_take_is_one_line(tmp_path: Path, template: str, todo: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), folder)
    with (folder / "chat_template.jinja").open("a") as file:
        file.write(template)
    words = [*TINY, f"model.path={folder}"]
    [problem] = examine([*words, "+data.chat_template_kwargs.enable_thinkin=true"]).problems
    assert str(problem) == (
        f"data.chat_template_kwargs.enable_thinkin: the model's chat template has no such variable. {todo}"
    )
    assert not template or not examine([*words, "+data.chat_template_kwargs.enable_thinking=false"]).problems


def with_template(folder: Path, text: str, kind: str) -> list[str]:
    """The model's own template with this behind it, of a folder that the plan reads whole or one of a class of its
    own."""
    shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), folder)
    with (folder / "chat_template.jinja").open("a") as file:
        file.write(f"\n{text}")
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"tokenizer_class": kind}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return [str(problem) for problem in examine([*TINY, f"model.path={folder}"]).problems]


KINDS = ("PreTrainedTokenizerFast", "LlamaTokenizerFast")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{% if x %}", "cannot be compiled: Unexpected end of template. "),
        ("{{ foo( }}", "cannot be compiled: unexpected '}', expected ')' (line "),
        ("{{ messages | nosuchfilter }}", "cannot be compiled: No filter named 'nosuchfilter' (line "),
        ("{{ nosuch() }}", "fails at one message of a user: 'nosuch' is undefined (line "),
        ("{{ messages[0].content.nosuch.deeper }}", "fails at one message of a user: 'str object' has no attr"),
        ("{{ messages[0].content + 1 }}", "fails at one message of a user: "),
    ],
)
def test_a_broken_template_is_one_line_with_its_line(tmp_path: Path, text: str, fault: str, kind: str) -> None:
    folder = tmp_path / "model"
    [problem] = with_template(folder, text, kind)
    lines = (folder / "chat_template.jinja").read_text().count("\n") + 1
    assert problem.startswith(f"{folder}/chat_template.jinja: the chat template {fault}")
    assert f"(line {lines})" in problem
    assert "messages, or" not in problem, "the rows are not what is wrong"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "{{ strftime_now('%Y')[:0] }}",
        "{{ bos_token + eos_token + pad_token if False else '' }}",
        "{% if tools %}{{ nosuch() }}{% endif %}",
        "{% if messages | length > 99 %}{{ raise_exception('too many') }}{% endif %}",
    ],
)
def test_what_transformers_gives_a_template_it_may_use(tmp_path: Path, text: str, kind: str) -> None:
    assert with_template(tmp_path / "model", text, kind) == []
    rendered = render(load_tokenizer(tmp_path / "model"), ROW["prompt"], "", {}, prompt=True)
    assert rendered.startswith(render(load_tokenizer(resolve(GLM)), ROW["prompt"], "", {}, prompt=True)[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_that_writes_nothing(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    with_template(folder, "", kind)
    for text, fault in (
        ("{# nothing #}", "the chat template writes nothing"),
        ("", "the tokenizer has no chat templa"),
    ):
        (folder / "chat_template.jinja").write_text(text)
        [problem] = [str(each) for each in examine([*TINY, f"model.path={folder}"]).problems]
        assert fault in problem
