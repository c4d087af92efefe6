"""The class of the trainer's ranks, which a distribution of its own brings."""

import pytest

from slime.config.schema import Device
from slime.errors import SlimeError
from slime.train import rank


def test_the_trainer_has_what_its_contract_asks_for() -> None:
    found = rank.trainer_class(Device.cpu)
    methods = {name for name in dir(rank.TrainerRank) if not name.startswith("_")}
    assert {"train", "export_plan", "begin_save"} <= methods
    missing = [name for name in methods if not hasattr(found, name)]
    assert missing == ["device"], "which is an attribute"


def test_where_it_is_not_installed_the_error_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "TRAINER", "slime_trainer_that_nobody_brings.trainer:Trainer")
    with pytest.raises(SlimeError, match="trainers need slime-megatron") as raised:
        rank.trainer_class(Device.cpu)
    assert "slime-rl[cpu]" in raised.value.todo
