"""The norms of a layer by name: what a family with biases states beside their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from slime.models.mapping import MEGATRON
from slime.models.rules import Rules
from slime_megatron.transformer import decoder, output

LAYER = ("input_layernorm", "pre_mlp_layernorm")
BEHIND = ("self_attention.linear_proj.post_layernorm", "mlp.linear_fc2.post_layernorm")


@pytest.mark.parametrize(("rules", "norms"), [(decoder.norm_rules, LAYER), (decoder.post_norm_rules, BEHIND)])
def test_a_norm_of_a_layer_has_a_bias_where_the_family_says_so(
    rules: Callable[..., Rules], norms: Sequence[str]
) -> None:
    one, other = norms
    assert [rule.megatron for rule in rules()] == [f"{MEGATRON}{one}.weight", f"{MEGATRON}{other}.weight"]
    both = rules("first", "second", bias=True)
    assert {rule.part: rule.hf for rule in both} == {
        f"{one}.weight": ("model.layers.{layer}.first.weight",),
        f"{one}.bias": ("model.layers.{layer}.first.bias",),
        f"{other}.weight": ("model.layers.{layer}.second.weight",),
        f"{other}.bias": ("model.layers.{layer}.second.bias",),
    }
    assert all(rule.shape and rule.shape.sizes({"hidden_size": 8}) == (8,) for rule in both), "a plan counts them"


def test_so_has_the_last_norm() -> None:
    without, having = (output.rules(16, tied=True, norm_bias=bias) for bias in (False, True))
    assert {rule.megatron for rule in having} - {rule.megatron for rule in without} == {"decoder.final_layernorm.bias"}
