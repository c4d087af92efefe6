"""Rank groups and pipeline stages, on paper and against Megatron-core itself."""

from typing import Any

import pytest

from slime.errors import SlimeError
from slime.layout import Grid, read_grid, split_layers

EMBEDDING_AND_LOSS = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
FIRST = {"num_layers_in_first_pipeline_stage": 1}
FIRST_AND_LAST = {**FIRST, "num_layers_in_last_pipeline_stage": 3}
LAYOUT = {"pipeline_model_parallel_layout": "Ett|t*3|t|ttL"}  # four parts: two stages of two chunks


@pytest.mark.parametrize(
    ("dimension", "groups"),
    [
        ("tp", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("cp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("pp", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("dp", [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ("ep", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("edp", [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ],
)
def test_groups_of_eight_ranks(dimension: str, groups: list[list[int]]) -> None:
    assert Grid(8, tp=2, cp=2, pp=2, ep=2, etp=1).groups(dimension) == groups


def test_coordinates_and_groups_agree() -> None:
    grid = Grid(48, tp=2, cp=3, pp=2, ep=6, etp=1)
    for name in ("tp", "cp", "dp", "pp", "ep", "etp", "edp"):
        for group in grid.groups(name):
            assert [grid.coordinates(rank)[name] for rank in group] == list(range(getattr(grid, name)))


def test_expert_tensor_parallel_follows_tensor_parallel() -> None:
    assert read_grid(4, {"tensor_model_parallel_size": 2}).etp == 2
    assert read_grid(4, {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 1}).etp == 1


@pytest.mark.parametrize(("cp", "tp", "align"), [(1, 1, 1), (1, 4, 4), (2, 1, 4), (4, 2, 16)])
def test_packing_alignment(cp: int, tp: int, align: int) -> None:
    assert Grid(8, tp=tp, cp=cp).packing_align == align


@pytest.mark.parametrize(
    ("num_layers", "grid", "keys", "stages"),
    [
        (4, Grid(1), {}, [[range(4)]]),
        (4, Grid(2, pp=2), {}, [[range(2)], [range(2, 4)]]),
        (8, Grid(2, pp=2, vpp=2), {}, [[range(2), range(4, 6)], [range(2, 4), range(6, 8)]]),
        (7, Grid(3, pp=3), FIRST, [[range(1)], [range(1, 4)], [range(4, 7)]]),
        (4, Grid(2, pp=2), FIRST_AND_LAST, [[range(1)], [range(1, 4)]]),
        (6, Grid(2, pp=2), EMBEDDING_AND_LOSS, [[range(3)], [range(3, 6)]]),
        (8, Grid(2, pp=2), LAYOUT, [[range(2), range(5, 6)], [range(2, 5), range(6, 8)]]),
    ],
)
def test_layers_of_the_stages(num_layers: int, grid: Grid, keys: dict[str, Any], stages: list[list[range]]) -> None:
    assert split_layers(num_layers, grid, keys) == stages


@pytest.mark.parametrize(
    ("num_layers", "grid", "keys", "says"),
    [
        (5, Grid(2, pp=2), {}, "5 layers cannot be divided into 2 equal pipeline parts. Choose another size, or give"),
        (3, Grid(4, pp=4), {}, "3 layers cannot be divided into 4 equal pipeline parts. Choose"),
        (4, Grid(2, pp=2), {"account_for_loss_in_pipeline_split": True}, r"2 equal pipeline parts \(5 to divide\)"),
        (4, Grid(2, pp=2, vpp=4), {}, r"into 4 equal pipeline parts \(2 to divide\)"),
        (2, Grid(2, pp=2), FIRST_AND_LAST, "a first stage of 1 and a last stage of 3"),
        (7, Grid(2, pp=2), LAYOUT, "the layout has 4 parts and 8 layers. Give a multiple of 2 parts"),
        (8, Grid(3, pp=3), LAYOUT, "the layout has 4 parts and 8 layers. Give a multiple of 3 parts"),
    ],
)
def test_indivisible_layers(num_layers: int, grid: Grid, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(SlimeError, match=says):
        split_layers(num_layers, grid, keys)


@pytest.mark.parametrize(("num_layers", "pp", "last"), [(92, 16, 2), (61, 4, 13), (78, 8, 8), (47, 2, 23), (17, 16, 2)])
def test_way_out_of_indivisible_layers_divides_them(num_layers: int, pp: int, last: int) -> None:
    grid = Grid(pp, pp=pp)
    with pytest.raises(SlimeError, match=f"give train.megatron.num_layers_in_last_pipeline_stage={last}"):
        split_layers(num_layers, grid, {})
    stages = split_layers(num_layers, grid, {"num_layers_in_last_pipeline_stage": last})
    assert len(stages[-1][0]) == last


@pytest.mark.slow
@pytest.mark.parametrize(
    "grid",
    [
        Grid(8, tp=2, cp=2, pp=2),
        Grid(16, tp=4, pp=2, ep=8, etp=1),
        Grid(16, tp=2, pp=2, ep=4, etp=2),
        Grid(48, tp=2, cp=3, pp=2, ep=6, etp=1),
        Grid(256, tp=4, cp=2, pp=8, ep=16, etp=1),
    ],
)
def test_groups_are_those_of_megatron(grid: Grid) -> None:
    from megatron.core.parallel_state import RankGenerator

    order = "tp-cp-ep-dp-pp"
    dense = RankGenerator(tp=grid.tp, ep=1, dp=grid.dp, pp=grid.pp, cp=grid.cp, order=order)
    expert = RankGenerator(tp=grid.etp, ep=grid.ep, dp=grid.edp, pp=grid.pp, cp=1, order=order)
    for name in ("tp", "cp", "dp", "pp"):
        assert grid.groups(name) == dense.get_ranks(name)
    for name, token in {"etp": "tp", "ep": "ep", "edp": "dp"}.items():
        assert grid.groups(name) == expert.get_ranks(token)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_layers", "grid", "keys"),
    [
        (8, Grid(4, pp=4), {}),
        (16, Grid(4, pp=4, vpp=2), {}),
        (13, Grid(4, pp=4), FIRST),
        (14, Grid(4, pp=4), FIRST_AND_LAST),
        (14, Grid(4, pp=4), EMBEDDING_AND_LOSS),
        (14, Grid(4, pp=4, vpp=2), EMBEDDING_AND_LOSS),
    ],
)
def test_layers_are_those_of_megatron(num_layers: int, grid: Grid, keys: dict[str, Any]) -> None:
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=num_layers,
        hidden_size=8,
        num_attention_heads=1,
        pipeline_model_parallel_size=grid.pp,
        virtual_pipeline_model_parallel_size=grid.vpp if grid.vpp > 1 else None,
        pipeline_dtype="float32",
        moe_token_dispatcher_type="alltoall",
        **keys,
    )
    for rank, chunks in enumerate(split_layers(num_layers, grid, keys)):
        for index, layers in enumerate(chunks):
            vp_stage = index if grid.vpp > 1 else None
            assert len(layers) == get_num_layers_to_build(config, vp_stage, rank)
            assert layers.start == offset(config, vp_stage, rank)


def offset(config: Any, vp_stage: int | None, rank: int) -> int:
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    return int(get_transformer_layer_offset(config, vp_stage, rank))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["Ett|t*3|t|ttL", "Et*3|(tt|)*2,t|L", "E|(t|)*6L"])
def test_layout_string_is_read_as_megatron_reads_it(text: str) -> None:
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    theirs = PipelineParallelLayerLayout(text, 1).layout[0]
    num_layers = sum(part.count(LayerType.decoder) for part in theirs)
    ours = split_layers(num_layers, Grid(1), {"pipeline_model_parallel_layout": text})[0]
    assert [len(part) for part in ours] == [part.count(LayerType.decoder) for part in theirs]
