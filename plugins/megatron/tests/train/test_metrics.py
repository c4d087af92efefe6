"""What the numbers of several optimizer steps become for the rollout."""

from __future__ import annotations


def test_tokens_add_up_and_maxima_stay_and_the_rest_are_means_over_the_steps_that_measured() -> None:
    from slime_megatron.train.metrics import combine

    steps = [
        {"num_tokens": 30.0, "ratio_max": 4.0, "loss": 2.0, "tail_max": 0.5},
        {"num_tokens": 50.0, "ratio_max": 1.5, "loss": 5.0, "teacher_kl": 0.25},
        {"num_tokens": 10.0, "ratio_max": 3.0, "loss": -1.0, "tail_max": 0.75},
    ]
    wanted = {"num_tokens": 90.0, "ratio_max": 4.0, "loss": 2.0, "tail_max": 0.75, "teacher_kl": 0.25}
    assert combine(steps, ["ratio_max", "tail_max"]) == wanted
