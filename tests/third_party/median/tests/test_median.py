import pytest

from slime.compose.compose import compose
from slime.errors import SlimeError
from slime_testing.estimators import check_estimator

CHOSEN = ["+model=glm4-tiny", "+cluster=local", "algo.advantage=median"]


def test_contract() -> None:
    check_estimator("median", options={"bound": 0.5})


def test_it_is_chosen_by_name() -> None:
    assert compose(CHOSEN).algo.advantage_options == {"bound": 1.0}


def test_its_options_are_checked() -> None:
    with pytest.raises(SlimeError, match=r"algo\.advantage_options\.bound: .*It takes float"):
        compose([*CHOSEN, "algo.advantage_options.bound=wide"])
