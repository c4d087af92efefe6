"""A block that no room of core knows, stated as a plugin would state it: whoever sums over blocks counts it."""

from __future__ import annotations

from typing import Any

from slime.layout import Grid
from slime.models.blocks import Attention, BuildingBlock, RankTokens, Saved
from slime.models.mapping import WeightMapping
from slime.models.rules import layer_rule
from slime.models.shapes import Block, Cut, Model, Shape
from slime.plan.flops import ForwardFlops
from slime.sizes.parameters import blocks_by_layer, unknown_parameter, weights_of
from slime_megatron.transformer import decoder, gqa, mlp
from slime_tools.memory.activations import Activations

MODEL: dict[str, Any] = {
    "num_layers": 3,
    "hidden_size": 64,
    "ffn_hidden_size": 128,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "vocab_size": 96,
}
NAME = "self_attention.gate.weight"


class Gate(BuildingBlock):
    def saved(self, tokens: RankTokens) -> Saved:
        return Saved(1000.0 * tokens.shard, 2e9, 7.0)

    def attention(self, model: Model, layer: int) -> Attention:
        return Attention(3.0, most_keys=60)


GATE = Gate({NAME: Shape(lambda m: (m["hidden_size"], m["hidden_size"]), Cut.tensor, Block.attention)})


def mapping(*gates: int, stated: bool = True) -> WeightMapping:
    gate = layer_rule(NAME, "self_attn.gate.weight", layers=gates)
    layer = (*decoder.norm_rules(), *gqa.rules(4, 2), *(GATE.state(gate) if stated else [gate]), *mlp.rules())
    return WeightMapping(layer, MODEL["num_layers"])


def test_its_parameters_bytes_and_flops_are_those_of_the_layers_that_have_it() -> None:
    weights = weights_of(MODEL, mapping(1))
    assert [weight.numel for weight in weights if weight.name == NAME] == [64 * 64]
    blocks = blocks_by_layer(weights)
    assert blocks[0] == blocks[2] == (decoder.NORMS, gqa.BLOCK, mlp.BLOCK)
    assert set(blocks[1]) == {*blocks[0], GATE}
    activations = Activations(MODEL, Grid(world_size=2, tp=2), tokens=512, longest=128)
    without, gated = (activations.layer(blocks[layer]) for layer in (0, 1))
    assert gated.saved - without.saved == 1000 * 256
    assert (without.lasting, gated.lasting) == (0, 7)
    assert gated.transient > 2e9 > without.transient
    flops = ForwardFlops(MODEL, weights, tokens=100).by_layer
    assert flops[1] - flops[0] == 2 * 64 * 64 + 3 * 42  # keys of 60 tokens are 30 in the mean, of 40 more 60


def test_of_a_rule_that_no_block_states_the_name_is_told() -> None:
    assert unknown_parameter(mapping(1)) is None
    assert unknown_parameter(mapping(1, stated=False)) == f"decoder.layers.{{layer}}.{NAME}"
