from __future__ import annotations

import pytest

from slime.data.rows import Row, read_rows
from slime.errors import SlimeError
from tests.site import Site


def test_a_key_may_name_a_field_inside_a_column() -> None:
    row = Row(1, "here", {"reward_model": {"ground_truth": "34"}, "a.b": 1, "a": {"b": 2}})
    assert (row["reward_model.ground_truth"], row["a.b"]) == ("34", 1)
    for key, nearest in (("reward_model.ground_trut", "ground_truth"), ("reward_modl.ground_truth", "reward_model")):
        with pytest.raises(SlimeError, match=f"the row has no key '{key}'. Did you mean '{nearest}'"):
            row[key]


FORMAT = '''
import collections
import enum
import numpy as np

class Colour(str, enum.Enum):
    RED = "red"

deep = []
for _ in range(101):
    deep = [deep]
VALUES = {
    "plain": {"a": [1, (2.5, None)], 3: b"x", "text": "ä"}, "numpy": np.int64(1), "array": np.arange(2),
    "inside": [{"a": np.float32(1)}], "set": {1}, "own text": Colour.RED, "half": "x\\ud83d",
    "half of a key": {"\\ude00": 1},
    "deep": deep, "own dict": collections.OrderedDict(a=1), "key": {(np.int64(1), 2): 3}, "complex": 1j,
}

def read(path, take, most=None):
    yield {"prompt": "hi"}
    yield {"prompt": "hi", "v": VALUES[path.read_text()]}

@hookimpl
def slime_row_formats():
    return {".odd": lambda: read}
'''  # fmt: skip
ODD = {
    "numpy": "type numpy.int64, which a checkpoint cannot hold",
    "array": "type numpy.ndarray",
    "inside": "type numpy.float32",
    "set": "type builtins.set",
    "own text": "type slime_odd.Colour",
    "half": "half of a character",
    "half of a key": "half of a character",
    "deep": "more than 100 levels",
    "own dict": "type collections.OrderedDict",
    "key": "type numpy.int64",
    "complex": "type builtins.complex",
}


def test_a_value_of_another_format_that_no_checkpoint_holds_is_named(site: Site) -> None:
    site.add("slime-odd", FORMAT)
    file = site.folder / "rows.odd"
    file.write_text("plain")
    assert read_rows(file).rows[1]["v"] == {"a": [1, (2.5, None)], 3: b"x", "text": "ä"}
    for name, what in ODD.items():
        file.write_text(name)
        with pytest.raises(SlimeError) as error:
            read_rows(file)
        assert error.value.where == f"{file} row 2"
        assert error.value.what.startswith("column 'v' holds ")
        assert what in error.value.what
