"""Folders and patterns of files: which files, in which order, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from slime.compose.compose import examine
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
        ([], r"there are no files of rows. Rows are read from .jsonl, .*\.arrow and \.parquet files"),
        (["rows.xlsx"], "there are no files of rows"),
        (
            ["train-00000-of-00001.jsonl", "test-00000-of-00001.jsonl"],
            r"the folder holds several data sets: test, train. Name one of them: .*:t\w+, or a pattern of files",
        ),
        (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "holds 2 of 3 files of the data set"),
        (["a.jsonl", "a.parquet"], "one data set is there as .jsonl and as .parquet"),
    ],
)
def test_folders_that_are_not_one_data_set(names: list[str], says: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text('{"prompt": "1"}\n')
    with pytest.raises(SlimeError, match=says):
        row_files(tmp_path)


DOWNLOADED = [
    ".cache/huggingface/download/data/test-00000-of-00001.jsonl.lock",
    "README.md",
    "dataset_infos.json",
    "data/test-00000-of-00001-b21a9d2d5d1cae4d.jsonl",
    "data/train-00000-of-00002-b21a9d2d5d1cae4d.jsonl",
    "data/train-00001-of-00002-0123456789abcdef.jsonl",
    "more/train/0000.jsonl",
]
"""As `hf download` leaves a data set, with the older names of shards, and a second subset."""


def test_a_downloaded_folder_is_its_splits(tmp_path: Path) -> None:
    for number, name in enumerate(DOWNLOADED):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'{{"prompt": "{number}"}}\n')
    found = {name: [row["prompt"] for row in read_rows(resolve_rows(f"{tmp_path}:{name}")).rows] for name in NAMES}
    assert found == {"test": ["3"], "data/train": ["4", "5"], "more/train": ["6"]}
    assert [row["prompt"] for row in read_rows(resolve_rows(f"{tmp_path}/data:train")).rows] == ["4", "5"]
    assert [row["prompt"] for row in read_rows(tmp_path / "more").rows] == ["6"], "the only one needs no name"
    for path, says in {
        "": "several data sets: data/test, data/train, more/train. Name one of them: ",
        ":train": "several data sets: data/train, more/train. Name one of them: ",
        ":trian": "the folder has no 'trian': data/test, data/train, more/train",
        "/README.md:train": "a file has no splits. Name ",
    }.items():
        with pytest.raises(SlimeError, match=re.escape(says)):
            read_rows(resolve_rows(f"{tmp_path}{path}"))
    with pytest.raises(SlimeError, match="there is no"):
        resolve_rows(f"{tmp_path}/none:train")


NAMES = ("test", "data/train", "more/train")


def test_train_and_test_of_one_folder_are_told_apart(tmp_path: Path) -> None:
    for name in ("train", "test"):
        jsonl(tmp_path / f"{name}.jsonl", ROWS)
    words = ["+model=glm4-tiny", "+cluster=local", f"data.path={tmp_path}:train"]
    assert examine([*words, f"eval.path={tmp_path}:test"]).problems == []
    said = str(examine([*words, f"eval.path={tmp_path}:train"]).problems)
    assert "the run would train on its held-out prompts" in said


def test_a_file_with_a_colon_in_its_name_is_that_file(tmp_path: Path) -> None:
    assert row_files(resolve_rows(str(jsonl(tmp_path / "a:b.jsonl", ROWS)))) == [tmp_path / "a:b.jsonl"]


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
