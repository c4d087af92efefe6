"""The order in which a mapping exports."""

import pytest

import slime_megatron.latent_attention as mla
from weight_buckets.bucket import loaded_together


@pytest.mark.parametrize(("q_lora", "runs"), [(True, [2, 1, 1, 1, 1, 1]), (False, [1, 1, 1, 1, 1])])
def test_down_projections_of_a_layer_are_exported_one_straight_after_the_other(q_lora: bool, runs: list[int]) -> None:
    """SGLang's loaders want both in one call (`loaded_together`)."""
    names = [name.format(layer=0) for rule in mla.rules(q_lora=q_lora) for name in rule.hf]
    assert [len(run) for run in loaded_together(names, name=str)] == runs
