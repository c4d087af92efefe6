import pytest

from slime.compose.compose import compose
from slime.errors import SlimeError
from slime_testing.objectives import check_objective

CHOSEN = ["+model=glm4-tiny", "+cluster=local", "algo=w_reinforce"]


@pytest.mark.slow
def test_contract() -> None:
    check_objective("w_reinforce", "pkg://slime_plugin_glm4/assets/glm4-tiny", options={"positive": 0.2}, kl_coef=0.1)


def test_it_is_chosen_by_name() -> None:
    algo = compose(CHOSEN).algo
    assert (algo.name, algo.options) == ("w_reinforce", {"positive": 0.1})


def test_its_options_are_checked() -> None:
    with pytest.raises(SlimeError, match=r"algo\.options\.positive: .*It takes float"):
        compose([*CHOSEN, "algo.options.positive=little"])


def test_the_clip_of_others_is_no_key_of_it() -> None:
    with pytest.raises(SlimeError, match=r"algo\.clip_low: does nothing without an objective that reads it"):
        compose([*CHOSEN, "algo.clip_low=0.1", "train.steps_per_rollout=2"])
