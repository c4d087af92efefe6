"""What each rank saves of the optimizer: boxes, and beside what Megatron-core itself gathers and saves."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime_megatron.train.host_memory import HostMemory
from slime_megatron.train.shards import host_copies
from slime_megatron.train.slices import boxes
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks

from .test_checkpoint import moe_config, start, train

GROUPED = {"moe_grouped_gemm": True, "bf16": True}
LAYOUTS = {
    "dp2": {},
    "dp2-grouped": GROUPED,
    "tp2-etp2-grouped": {**GROUPED, "tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2},
    "ep2-grouped": {**GROUPED, "expert_model_parallel_size": 2},
    "pp2-dp2": {"pipeline_model_parallel_size": 2},
}


def views() -> list[Tensor]:
    """Matrices and stacks, whole and cut, in each order of their dimensions."""
    whole = torch.arange(3 * 4 * 5)
    stack, matrix = whole.view(3, 4, 5), whole.view(6, 10)
    cut = [stack, stack[:, 1:3], stack[1:, :, :2], stack[:, :, 2:3], whole[7:7], whole[9]]
    return [each.permute(order) for each in (*cut, matrix, matrix[3:]) for order in permutations(range(each.dim()))]


@pytest.mark.parametrize("view", views(), ids=lambda view: f"{[*view.shape]}-{[*view.stride()]}")
def test_boxes_hold_each_element_of_a_range_once(view: Tensor) -> None:
    first = view.storage_offset()
    for begin in range(0, 61, 3):
        for stop in range(begin, 61, 4):
            found: list[int] = []
            for box in boxes(view.shape, view.stride(), begin - first, stop - first):
                part = view
                for axis, (low, length) in enumerate(box):
                    part = part.narrow(axis, low, length)
                found += part.flatten().tolist()
            assert sorted(found) == sorted(value for value in view.flatten().tolist() if begin <= value < stop)


def test_whole_rows_are_one_box() -> None:
    """So a slice of a matrix is three boxes at the most, of a stack of them five."""
    assert [*boxes((4, 10), (10, 1), 0, 40)] == [((0, 4), (0, 10))]
    assert [*boxes((4, 10), (10, 1), 5, 33)] == [((1, 2), (0, 10)), ((0, 1), (5, 5)), ((3, 1), (0, 3))]
    assert len([*boxes((4, 10, 10), (100, 10, 1), 5, 395)]) == 5


def test_copies_have_values_and_strides_of_their_originals() -> None:
    """Those of one stretch of memory lie in one copy, and all of them in memory that stays."""
    whole, memory = torch.randn(4, 6, 8), HostMemory()
    originals = [whole[:2], whole[1:3].transpose(1, 2), whole[3, 0], torch.randn(3).double(), torch.empty(0, 3)]
    copies = host_copies(originals, memory)
    for copy, original in zip(copies, originals, strict=True):
        assert (copy.dtype, copy.stride()) == (original.dtype, original.stride())
        torch.testing.assert_close(copy, original, rtol=0, atol=0)
    kept = [copy.clone() for copy in copies]
    whole.zero_()
    assert all(torch.equal(copy, before) for copy, before in zip(copies, kept, strict=True))
    places = [copy.untyped_storage().data_ptr() for copy in copies[:3]]
    assert places[0] == places[1] != places[2]
    for copy, original in zip(host_copies(originals, memory), originals, strict=True):
        torch.testing.assert_close(copy, original, rtol=0, atol=0)
    assert [copy.untyped_storage().data_ptr() for copy in copies[:3]] == places
    assert torch.equal(copies[0], torch.zeros(2, 6, 8)), "it has what is copied last"


def save_in_both_ways(rank: Rank, model: Path, layout: dict[str, Any], folder: Path) -> None:
    from slime_megatron.train.optimizer import parts_of

    trainer = start(rank, model, layout)
    trainer.init_weights()
    train(trainer, range(2))
    trainer.save(folder / "slices")
    for part in parts_of(trainer.optimizer.megatron):
        del part.sharded_param_state_fully_reshardable  # Megatron-core's own comes into view
    trainer.save(folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_slices_are_what_megatron_saves(name: str, tmp_path: Path) -> None:
    """Every tensor, bit for bit: each is read whole, by torch."""
    write_checkpoint(moe_config(), tmp_path / "model")
    for way in ("slices", "whole"):
        (tmp_path / way).mkdir()
    run_ranks(save_in_both_ways, 4 if name == "pp2-dp2" else 2, tmp_path / "model", LAYOUTS[name], tmp_path)
    slices, whole = tensors_in(tmp_path / "slices"), tensors_in(tmp_path / "whole")
    assert slices.keys() == whole.keys()
    assert any(name.startswith("optimizer.state.exp_avg_sq.") for name in whole)
    for key, tensor in whole.items():
        assert (slices[key].dtype, slices[key].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(slices[key], tensor), key


def tensors_in(folder: Path) -> dict[str, Tensor]:
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = FileSystemReader(folder)
    of_tensors = {
        name: each
        for name, each in reader.read_metadata().state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    state = {name: torch.full(each.size, torch.nan, dtype=each.properties.dtype) for name, each in of_tensors.items()}
    load(state, storage_reader=reader, no_dist=True)
    return state
