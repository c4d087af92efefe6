from slime.types import Verdict
from slime_testing.plugins import RewardCase, check_reward


def test_contract() -> None:
    check_reward(
        "closeness",
        [
            RewardCase("70+15=85", "85", 1.0),
            RewardCase("75", "85", Verdict.of(0.5, distance=10.0, number=1.0)),
            RewardCase("no idea", "85", 0.0),
        ],
    )


def test_the_scale_is_an_option() -> None:
    check_reward("closeness", [RewardCase("84", "85", 0.5)], options={"scale": 1})
