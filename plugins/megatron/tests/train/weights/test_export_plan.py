"""Who sends what to whom: every row once, by whoever holds it, and in FP8 the bytes of the whole matrix quantised."""

from __future__ import annotations

import pytest
import torch

from slime.errors import SlimeError
from slime.models.mapping import Rule, Shard, WeightMapping
from slime.weights.quantized import quantized, quantizer_of
from slime_megatron.fp8_block.config import Fp8Format
from slime_megatron.train.weights.export import assemble, read_blocks
from slime_megatron.train.weights.export_plan import Holding, PlannedBucket, Planner, holders
from slime_megatron.train.weights.local import LocalTensor
from slime_megatron.transformer import mlp

NAMES = {0: "decoder.layers.0.mlp.linear_fc1.weight", 1: "decoder.layers.0.mlp.linear_fc2.weight"}
NORM = "decoder.final_layernorm.weight"
MAPPING = WeightMapping((*mlp.rules(), Rule(NORM, ("model.norm.weight",))), num_layers=1)
GATE, UP, DOWN, HF_NORM = (name for entry in MAPPING.entries for name in entry.hf)


def shards(ffn: int, tp: int) -> tuple[dict[str, torch.Tensor], list[dict[str, LocalTensor]]]:
    """The HF tensors of an MLP and a norm, and what each tensor-parallel rank holds of them."""
    generator = torch.Generator().manual_seed(0)
    hf = {
        GATE: torch.randn(ffn, 192, generator=generator).bfloat16(),
        UP: torch.randn(ffn, 192, generator=generator).bfloat16(),
        DOWN: torch.randn(192, ffn, generator=generator).bfloat16(),
        HF_NORM: torch.randn(192, generator=generator),
    }
    rows, entries = ffn // tp, MAPPING.by_megatron_name
    ranks = []
    for rank in range(tp):
        part = slice(rank * rows, (rank + 1) * rows)
        held = {
            NAMES[0]: (torch.cat([hf[GATE][part], hf[UP][part]]), Shard(rank, tp, 0)),
            NAMES[1]: (hf[DOWN][:, part], Shard(rank, tp, 1)),
            NORM: (hf[HF_NORM], Shard()),
        }
        ranks.append({name: LocalTensor(entries[name], each, shard, False) for name, (each, shard) in held.items()})
    return hf, ranks


def planned(ranks: list[dict[str, LocalTensor]], receivers: tuple[int, ...] | None, capacity: int, form=None):
    told = [
        {name: Holding(x.shard, tuple(x.tensor.shape), x.tensor.dtype, x.is_copy) for name, x in held.items()}
        for held in ranks
    ]
    return Planner(holders(told), capacity, receivers, form).plan(MAPPING.entries)


def moved(bucket: PlannedBucket, ranks: list[dict[str, LocalTensor]], form: Fp8Format | None):
    """The bucket at its receiver."""
    values, quantizer = {}, quantizer_of(form) if form else None
    for rank, local in enumerate(ranks):
        values |= read_blocks([block for block in bucket.blocks if block.rank == rank], local, quantizer)
    return assemble(bucket, values, quantizer)


@pytest.mark.parametrize("receivers", [(0,), (1, 0), None])
@pytest.mark.parametrize("form", [None, Fp8Format(), Fp8Format(powers_of_two=True)])
@pytest.mark.parametrize(("ffn", "tp"), [(512, 2), (512, 4), (320, 2), (96, 2)])
def test_every_tensor_arrives_as_if_it_had_been_whole(ffn, tp, form, receivers):
    """Where a shard ends inside a block it is quantised after it was gathered."""
    hf, ranks = shards(ffn, tp)
    wanted = dict(quantized(hf.items(), quantizer_of(form)) if form else hf.items())
    got = [named for bucket in planned(ranks, receivers, 1, form) for named in moved(bucket, ranks, form)]
    assert sorted(name for name, _ in got) == sorted(wanted)
    for name, tensor in got:
        assert tensor.dtype == wanted[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), wanted[name].view(torch.uint8)), name


def test_shards_that_end_at_a_block_travel_in_fp8():
    for ffn, in_fp8 in ((512, True), (320, False)):
        _, ranks = shards(ffn, 2)
        for bucket in planned(ranks, (0,), 1 << 30, Fp8Format()):
            found = {block.is_quantized for block in bucket.blocks if block.parameter != NORM}
            assert found == {in_fp8}, ffn


def test_a_receiver_is_sent_what_it_lacks():
    _, ranks = shards(512, 4)
    for bucket in planned(ranks, (2,), 1):
        senders = {block.parameter: set() for block in bucket.blocks}
        for rank, of_rank in bucket.messages.items():
            for block in of_rank:
                senders[block.parameter].add(rank)
        assert all(found == (set() if name == NORM else {0, 1, 3}) for name, found in senders.items())


def test_receivers_take_turns():
    _, ranks = shards(512, 2)
    buckets = planned(ranks, (0, 1), 1)
    assert [(bucket.receiver, bucket.last) for bucket in buckets] == [(0, False), (1, True), (0, True)]


def test_a_replica_takes_what_its_own_neighbours_hold():
    """Two replicas of two tensor-parallel ranks: none asks the other replica."""
    _, pair = shards(512, 2)
    for bucket in planned([*pair, *pair], (0, 1, 2, 3), 1):
        assert bucket.receiver is not None
        assert {rank // 2 for rank in (*bucket.messages, bucket.receiver)} == {bucket.receiver // 2}


def test_a_parameter_that_no_rank_has_is_named():
    _, ranks = shards(512, 2)
    for local in ranks:
        del local[NAMES[1]]
    with pytest.raises(SlimeError, match=f"no complete parameter '{NAMES[1]}'"):
        planned(ranks, (0,), 1)
