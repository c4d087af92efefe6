"""Prompt sets of the hub, by its real client and a server in its form."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pyarrow.parquet
import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.config.paths import resolve_rows
from slime.data.rows import read_rows
from slime.errors import SlimeError
from slime_tools.hub.rows import _fetched

from .conftest import Hub, commit

ROOT = Path(__file__).parents[4]
ROWS = [{"question": f"{number}+1=", "answer": str(number + 1)} for number in range(5)]


def parquet(rows: list[dict[str, str]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


FILES = {
    "README.md": b"# a set",
    "main/train-00000-of-00002.parquet": parquet(ROWS[:3]),
    "main/train-00001-of-00002.parquet": parquet(ROWS[3:]),
    "main/test-00000-of-00001.parquet": parquet(ROWS[:1]),
    "socratic/train-00000-of-00001.parquet": parquet(ROWS[:2]),
}
LINES = {"train.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)}


@pytest.fixture(autouse=True)
def _sets(hub: Hub) -> None:
    hub.repositories = {
        "datasets/o/gsm": {"main": FILES, "refs/convert/parquet": {"data/train/0000.parquet": parquet(ROWS[:4])}},
        "datasets/o/one": {"main": LINES},
    }
    _fetched.cache_clear()
    plugins.load()


@pytest.mark.parametrize(
    ("address", "count"),
    [
        ("hf://o/gsm/main:train", 5),
        ("hf://o/gsm:main/train", 5),
        ("hf://o/gsm:test", 1),
        ("hf://o/gsm/socratic", 2),
        ("hf://datasets/o/gsm@main/main/test-00000-of-00001.parquet", 1),
        ("hf://o/gsm@refs/convert/parquet:train", 4),
        (f"hf://o/gsm@{commit(FILES)}/main:test", 1),
        ("hf://o/one", 5),
    ],
)
def test_an_address_is_the_rows_of_its_files(address: str, count: int) -> None:
    rows = read_rows(resolve_rows(address)).rows
    assert [row.values for row in rows] == ROWS[:count]


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("hf://o/gsm:train", r"several data sets: main/train, socratic/train. Name one of them: hf://o/gsm:main/train"),
        ("hf://o/gsm/main:trian", r"has no 'trian': test, train. Did you mean 'train'\?"),
        ("hf://o/gsm@v9:train", "the data set 'o/gsm' has no such revision"),
        ("hf://o/none", "the hub has no data set 'o/none' that you may see. Check the name; .* 'hf auth login'"),
        ("hf://o", "it is no address of the hub. Write hf://OWNER/NAME"),
    ],
)
def test_what_is_not_there_is_told_in_a_line(address: str, says: str) -> None:
    with pytest.raises(SlimeError, match=says) as caught:
        resolve_rows(address)
    assert "\n" not in str(caught.value)


def test_only_the_wanted_split_is_fetched_and_once(hub: Hub) -> None:
    for _ in range(3):
        resolve_rows("hf://o/gsm/main:test")
    fetched = [each for each in hub.asked if each.startswith("GET datasets/o/gsm/resolve")]
    assert [each.rpartition("/")[2] for each in fetched] == ["test-00000-of-00001.parquet"]


def test_without_the_hub_the_cache_serves_what_is_whole_in_it(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    there = read_rows(resolve_rows("hf://o/gsm/main:test")).content_hash
    hub.refuses = 503
    _fetched.cache_clear()
    assert read_rows(resolve_rows("hf://o/gsm/main:test")).content_hash == there
    assert "the hub is not reached, the cache is taken" in caplog.text
    for address in ("hf://o/gsm/main:train", "hf://o/one"):
        with pytest.raises(SlimeError, match="the hub does not do it"):
            resolve_rows(address)


def test_the_documented_address_has_a_plan(hub: Hub) -> None:
    solved = [{**row, "answer": f"#### {row['answer']}"} for row in ROWS]
    rows = {"train": solved[:4], "test": solved[4:]}  # files with the same bytes would be the same prompts
    files = {f"main/{name}-00000-of-00001.parquet": parquet(found) for name, found in rows.items()}
    hub.repositories["datasets/openai/gsm8k"] = {"main": files}
    [line] = re.findall(r"^    slime plan (.*hf://.*)$", (ROOT / "docs/your-own.md").read_text(), re.MULTILINE)
    assert examine(line.split()).problems == []


def test_a_plan_reads_the_rows_and_train_may_not_be_test() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "task=none", "reward=math", "run.num_steps=1"]
    words += ["data.prompt_key=question", "data.label_key=answer", "data.path=hf://o/gsm/main:train"]
    words += ["rollout.max_prompt_tokens=32", "rollout.sampling.max_response_tokens=16"]
    assert examine([*words, "eval.path=hf://o/gsm/main:test"]).problems == []
    said = str(examine([*words, "eval.path=hf://o/gsm/main:train"]).problems)
    assert "the run would train on its held-out prompts" in said
