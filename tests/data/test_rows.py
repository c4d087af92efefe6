from __future__ import annotations

import pytest

from slime.data.rows import Row
from slime.errors import SlimeError


def test_a_key_may_name_a_field_inside_a_column() -> None:
    row = Row(1, "here", {"reward_model": {"ground_truth": "34"}, "a.b": 1, "a": {"b": 2}})
    assert (row["reward_model.ground_truth"], row["a.b"]) == ("34", 1)
    for key, nearest in (("reward_model.ground_trut", "ground_truth"), ("reward_modl.ground_truth", "reward_model")):
        with pytest.raises(SlimeError, match=f"the row has no key '{key}'. Did you mean '{nearest}'"):
            row[key]
