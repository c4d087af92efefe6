"""Arrow files: a folder that `datasets` 5.2 wrote with `save_to_disk` (`saved`), and what damage may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pytest

from slime.data import rows
from slime.data.rows import first_rows, read_rows
from slime.errors import SlimeError

from .flipped import said_of_flipped_bits

SAVED = Path(__file__).with_name("saved") / "splits"
TURNS = [
    [{"role": "user", "content": f"{number}+1="}, {"role": "assistant", "content": str(number + 1)}]
    for number in range(9)
]


def write(path: Path, table: list[dict[str, Any]], format: Any = pyarrow.ipc.new_stream) -> Path:
    rows = pyarrow.Table.from_pylist(table)
    with format(str(path), rows.schema) as file:
        file.write_table(rows, max_chunksize=4)
    return path


def test_a_saved_data_set_is_its_splits() -> None:
    train, test = (read_rows(Path(f"{SAVED}:{name}")).rows for name in ("train", "test"))
    assert [row["messages"] for row in (*train, *test)] == TURNS
    assert [row["n"] for row in (*train, *test)] == list(range(9))
    assert read_rows(SAVED / "train").rows == train, "the folder of one split has it alone"
    with pytest.raises(SlimeError, match=r"several data sets: test, train. Name one of them: .*splits:t"):
        read_rows(SAVED)


@pytest.mark.parametrize("format", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
def test_rows_of_streams_and_files(format: Any, tmp_path: Path) -> None:
    table = [{"prompt": f"{number}+1=", "inside": {"n": [number, None]}} for number in range(11)]
    file = write(tmp_path / "rows.arrow", table, format)
    assert [row.values for row in read_rows(file).rows] == table
    assert [row.values for row in first_rows(file, 5)] == table[:5]
    assert len(read_rows(file, limit=6).rows) == 6


def test_any_flipped_bit_is_an_error_of_one_line_or_another_value(tmp_path: Path) -> None:
    content = write(
        tmp_path / "rows.arrow", [{"prompt": f"{number}", "l": [number]} for number in range(40)]
    ).read_bytes()
    file = tmp_path / "flipped.arrow"
    said = said_of_flipped_bits(content, file)
    assert len(said) > 20
    assert all(each.startswith(str(file)) and "\n" not in each for each in said)


def test_what_a_small_file_unfolds_to_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), ["x" * 2**10])
    table = pyarrow.table({"prompt": text})
    with pyarrow.ipc.new_stream(str(tmp_path / "rows.arrow"), table.schema) as file:
        file.write_table(table)
    assert (tmp_path / "rows.arrow").stat().st_size < 2**14
    monkeypatch.setattr(rows, "MAX_BYTES", 2**20)
    with pytest.raises(SlimeError, match=r"the rows would take more than 1.0 MiB of memory"):
        read_rows(tmp_path / "rows.arrow")
    monkeypatch.setattr(rows, "MAX_BYTES", 2**22)
    assert len(read_rows(tmp_path / "rows.arrow").rows) == 1000
