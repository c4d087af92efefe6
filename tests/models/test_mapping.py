"""The table and its arithmetic: every row of every HF tensor lies once in the shards, where Megatron wants it."""

from __future__ import annotations

import pytest
import torch

import slime_megatron.latent_attention as mla
from slime.models import rules
from slime.models.mapping import Layout, Rule, Shard, WeightMapping
from slime_megatron.transformer import embeddings, output

GROUPS, HEAD = 4, 2


def shards_of(layout: Layout, hf: list[torch.Tensor], num_shards: int, rows: int) -> list[torch.Tensor]:
    """The shards, copied block by block as loading does."""
    shards = []
    for rank in range(num_shards):
        shard = torch.full((rows // num_shards, *hf[0].shape[1:]), -1)
        for piece in layout.pieces(len(shard), Shard(rank, num_shards)):
            shard[piece.target : piece.target + piece.length] = hf[piece.index][
                piece.source : piece.source + piece.length
            ]
        shards.append(shard)
    return shards


def hf_of(layout: Layout, shards: list[torch.Tensor]) -> list[torch.Tensor]:
    """The whole HF tensors, copied block by block as exporting does."""
    shapes = layout.hf_shapes(shards[0].shape, Shard(0, len(shards)))
    whole = [torch.full(shape, -1) for shape in shapes]
    for rank, shard in enumerate(shards):
        for piece in layout.pieces(len(shard), Shard(rank, len(shards))):
            whole[piece.index][piece.source : piece.source + piece.length] = shard[
                piece.target : piece.target + piece.length
            ]
    return whole


def rows(count: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + count)[:, None].expand(-1, 3).contiguous()


LAYOUTS = {
    "plain": (Layout(), [rows(16)]),
    "gate-up": (rules.GATE_UP, [rows(8), rows(8, 100)]),
    "fused-gate-up": (rules.FUSED_GATE_UP, [rows(16)]),
    "qkv": (
        Layout(parts=(2, 1, 1), num_units=GROUPS),
        [rows(2 * GROUPS * HEAD), rows(GROUPS * HEAD, 100), rows(GROUPS * HEAD, 200)],
    ),
    "vocabulary": (Layout(num_rows=13), [rows(13)]),
}


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip_over_shards(name: str, num_shards: int) -> None:
    layout, hf = LAYOUTS[name]
    num_rows = 16 if layout.num_rows else sum(map(len, hf))
    back = hf_of(layout, shards_of(layout, hf, num_shards, num_rows))
    assert all(torch.equal(one, other) for one, other in zip(back, hf, strict=True))


def test_each_key_value_head_follows_its_query_heads() -> None:
    layout, hf = LAYOUTS["qkv"]
    second = shards_of(layout, hf, 2, 32)[1][:, 0].tolist()
    assert second[:8] == [8, 9, 10, 11, 104, 105, 204, 205]  # two query heads of two rows, then their k and v


@pytest.mark.parametrize("name", ["gate-up", "fused-gate-up"])
def test_each_shard_has_its_half_of_gate_and_of_up(name: str) -> None:
    layout, hf = LAYOUTS[name]
    up = 8 if layout.fused else 100
    second = shards_of(layout, hf, 2, 16)[1][:, 0].tolist()
    assert second == [4, 5, 6, 7, up + 4, up + 5, up + 6, up + 7]


def test_vocabulary_padding_is_left_alone() -> None:
    layout, hf = LAYOUTS["vocabulary"]
    last = shards_of(layout, hf, 2, 16)[1][:, 0].tolist()
    assert last == [8, 9, 10, 11, 12, -1, -1, -1]


def test_a_shard_behind_the_vocabulary_has_no_row_of_it() -> None:
    found = [list(Layout(num_rows=9).pieces(4, Shard(rank, 4))) for rank in range(4)]
    assert [[(piece.source, piece.length) for piece in each] for each in found] == [[(0, 4)], [(4, 4)], [(8, 1)], []]


def test_row_parallel_shape_grows_along_its_own_dimension() -> None:
    assert Layout().hf_shapes((5, 4), Shard(1, 3, dim=1)) == [(5, 12)]


def test_entries_run_layer_by_layer_between_stem_and_head() -> None:
    rules = (
        Rule("embedding", ("embed",)),
        Rule("decoder.layers.{layer}.norm", ("layers.{layer}.norm",)),
        Rule("decoder.layers.{layer}.experts.{expert}", ("layers.{layer}.experts.{expert}",), layers=(1,)),
        Rule("output", ("lm_head",)),
    )
    entries = WeightMapping(rules, num_layers=2, num_experts=2).entries
    assert [entry.hf[0] for entry in entries] == [
        "embed",
        "layers.0.norm",
        "layers.1.norm",
        "layers.1.experts.0",
        "layers.1.experts.1",
        "lm_head",
    ]


def test_tied_output_layer_is_a_second_copy_of_the_embeddings() -> None:
    rules = embeddings.rules(16) + output.rules(16, tied=True)
    exported = [rule.hf for rule in rules if rule.exported]
    assert exported == [("model.embed_tokens.weight",), ("model.norm.weight",)]


def test_latent_attention_without_query_compression_has_one_query_projection() -> None:
    assert {rule.megatron.split(".")[-2] for rule in mla.rules(q_lora=False)} == {
        "linear_q_proj",
        "linear_kv_down_proj",
        "kv_layernorm",
        "linear_kv_up_proj",
        "linear_proj",
    }
