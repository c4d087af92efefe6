"""The config of a run as trackers and `slime watch` show it."""

from slime.run_config import HIDDEN, shown_config


def test_keys_in_the_environment_stay_here():
    group = {"devices": 1, "environment": {"TOKEN": "secret"}}
    config = {"cluster": {"environment": {"HF_TOKEN": "secret"}}, "rollout": {"engines": {"a": group}}}
    shown = shown_config(config)
    assert shown["cluster"] == {"environment": {"HF_TOKEN": HIDDEN}}
    assert shown["rollout"]["engines"]["a"] == {"devices": 1, "environment": {"TOKEN": HIDDEN}}
    assert config["cluster"]["environment"]["HF_TOKEN"] == group["environment"]["TOKEN"] == "secret", "the run's stays"


def test_a_config_of_another_shape_is_shown_as_it_is():
    config = {"cluster": {"environment": 3}, "rollout": {"engines": [1]}}
    assert shown_config(config) == config
    config = {"rollout": {"engines": {"a": 3, "b": {"environment": None}}}}
    assert shown_config(config) == config
