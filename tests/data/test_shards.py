"""Folders and patterns of files: which files, in which order, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from slime.config.paths import exists, resolve_rows
from slime.config.schema import DataConfig
from slime.data.prompts import PromptSource
from slime.data.rows import read_rows
from slime.data.shards import row_files
from slime.data.tokenize import Tokenizer
from slime.errors import SlimeError

ROWS = [{"prompt": f"{number}+1=", "label": str(number + 1)} for number in range(12)]


def parquet(path: Path, rows: list[dict[str, str]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("write", [parquet, jsonl])
def test_shards_are_the_rows_of_one_file(write, tmp_path: Path, tokenizer: Tokenizer) -> None:
    suffix = f".{write.__name__}"
    folder = tmp_path / "data"
    for number in range(12):  # 10 and 11 come after 9, not after 1
        write(folder / f"train_{number}{suffix}", ROWS[number : number + 1])
    (folder / "README.md").write_text("# a data set")
    whole = read_rows(write(tmp_path / f"whole{suffix}", ROWS))
    for path in (folder, folder / f"train_*{suffix}"):
        found = read_rows(path)
        assert [row.values for row in found.rows] == [row.values for row in whole.rows]
        assert [row.number for row in found.rows] == list(range(1, 13))
        assert found.rows[10].where == f"{folder / f'train_10{suffix}'} {'line' if suffix == '.jsonl' else 'row'} 1"
    source = PromptSource(DataConfig(path=f"{folder}/train_*{suffix}"), tokenizer, 5, 64)
    alone = PromptSource(DataConfig(path=str(tmp_path / f"whole{suffix}")), tokenizer, 5, 64)
    assert source.take(12) == alone.take(12)


def test_a_changed_shard_is_a_changed_data_set(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for number in range(2):
        jsonl(tmp_path / f"part-{number}.jsonl", ROWS[number : number + 1])
    source = PromptSource(DataConfig(path=str(tmp_path)), tokenizer, 5, 64)
    jsonl(tmp_path / "part-2.jsonl", ROWS[2:3])
    with pytest.raises(SlimeError, match="the file changed since the checkpoint was taken"):
        PromptSource(DataConfig(path=str(tmp_path)), tokenizer, 5, 64).load_state_dict(source.state_dict())


def test_an_error_names_the_shard_and_its_row(tmp_path: Path, tokenizer: Tokenizer) -> None:
    jsonl(tmp_path / "part-0.jsonl", ROWS[:3])
    jsonl(tmp_path / "part-1.jsonl", [ROWS[3], {"prompt": "", "label": "1"}])
    with pytest.raises(SlimeError, match=r"part-1\.jsonl line 2: 'prompt' message 1 has an empty content"):
        PromptSource(DataConfig(path=str(tmp_path)), tokenizer, 5, 64)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "there are no files of rows. Name .jsonl or .parquet files"),
        (["rows.csv"], "there are no files of rows"),
        (
            ["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"],
            r"the folder holds several data sets: test\.jsonl, train\.jsonl. Name one of them, such as .*train-\*",
        ),
        (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "holds 2 of 3 files of the data set"),
        (["a.jsonl", "a.parquet"], "several data sets"),
    ],
)
def test_folders_that_are_not_one_data_set(names: list[str], says: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text('{"prompt": "1"}\n')
    with pytest.raises(SlimeError, match=says):
        row_files(tmp_path)


def test_a_json_list_is_refused_with_the_command_that_makes_jsonl_of_it(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    with pytest.raises(SlimeError, match=r"not a jsonl or parquet file.*'jq -c \.\[\] .*rows.json > .*rows.jsonl'"):
        row_files(tmp_path / "rows.json")


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_table_is_refused_with_the_command_that_makes_jsonl_of_it(
    tmp_path: Path, suffix: str, delimiter: str
) -> None:
    """Run as it is told: the values are texts, of several lines too."""
    file = tmp_path / f"rows{suffix}"
    file.write_text(f'\ufeffprompt{delimiter}label\n"1+\n1="{delimiter}2\n')
    with pytest.raises(SlimeError, match="This makes one: python -c") as caught:
        row_files(file)
    command = str(caught.value).partition("This makes one: python ")[2]
    subprocess.run(f"{sys.executable} {command}", shell=True, check=True)
    assert [row.values for row in read_rows(tmp_path / "rows.jsonl").rows] == [{"prompt": "1+\n1=", "label": "2"}]


def test_patterns_are_paths_of_rows(tmp_path: Path) -> None:
    jsonl(tmp_path / "part-0.jsonl", ROWS)
    assert resolve_rows(f"{tmp_path}/part-*.jsonl") == tmp_path / "part-*.jsonl"
    assert exists(f"{tmp_path}/part-?.jsonl")
    with pytest.raises(SlimeError, match=r"no file matches '.*test-\*\.jsonl'"):
        resolve_rows(f"{tmp_path}/test-*.jsonl")


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "rows.jsonl", ROWS)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [row.values for row in read_rows(file).rows] == ROWS


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_pointer_in_the_place_of_a_file_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(SlimeError, match=rf"{name}: it is a pointer of Git LFS, not the file itself"):
            row_files(path)
