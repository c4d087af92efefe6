"""A rank's own slice of the optimizer's state, as boxes of the tensors of a checkpoint.

Megatron-core's format "fully_reshardable" gathers the state of all data-parallel ranks on each of them before it is
saved: as many bytes again as there are ranks, and most of the time that a checkpoint takes. What it writes is wanted:
a tensor of each parameter's shape, which any layout can read. A rank has a range of a flattened parameter, and a range
is a few boxes: the rest of a row, whole rows, the beginning of one. They are written as they lie, by whom they lie
with; torch's format puts them together as it reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from torch import Tensor
from torch.overrides import TorchFunctionMode

_STATES = ("param", "exp_avg", "exp_avg_sq")
"""Of a parameter; Adam's step stands in the parameter groups."""
Box = tuple[tuple[int, int], ...]
"""First index and length in each dimension."""


def save_slices(part: Any) -> None:
    """Have one of Megatron-core's distributed optimizers save its own slice alone."""
    whole = part.sharded_param_state_fully_reshardable

    def param_state(model: ShardedStateDict, is_loading: bool = False, metadata: Any = None) -> Any:
        return whole(model, is_loading, metadata) if is_loading else _slices(part, model)

    part.sharded_param_state_fully_reshardable = param_state


def _slices(part: Any, model: ShardedStateDict) -> list[ShardedTensor]:
    """All boxes of the state of this rank, under the keys and shapes that Megatron-core gives them."""
    sharded, _ = extract_sharded_tensors_and_factories(model)
    places = {each.data: each for each in nested_values(sharded)}
    found = list[ShardedTensor]()
    for parameter in part.model_param_gbuf_map:
        own = part._get_model_param_range_map(parameter)["param"]
        state = part._get_main_param_and_optimizer_states(parameter)
        with torch.no_grad(), _ViewsOnly():
            views = _views(places[parameter])
        for view, name in ((view, name) for view in views for name in _STATES):
            flat = state[name].detach().float()
            assert flat.numel() == own.end - own.start, "an optimizer holds a range of each of its parameters"
            found += _boxes_of(view, parameter, flat, own.start, f"optimizer.state.{name}")
    return found


class _ViewsOnly(TorchFunctionMode):
    """Inside, what a factory makes of a parameter stays a view of it, whose strides tell what lies where."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func is Tensor.contiguous else func(*args, **(kwargs or {}))


def _views(place: ShardedTensor | ShardedTensorFactory) -> list[ShardedTensor]:
    return list(nested_values([place.build()])) if isinstance(place, ShardedTensorFactory) else [place]


def _boxes_of(view: ShardedTensor, parameter: Tensor, flat: Tensor, start: int, prefix: str) -> Iterator[ShardedTensor]:
    """The boxes of a tensor of the checkpoint that lie in `flat`, which is the parameter from element `start` on."""
    data, ahead = view.data, view.prepend_axis_num
    assert data is not None, "it is a view of the parameter"
    assert data.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr(), "a factory copies"
    first = data.storage_offset() - parameter.storage_offset()
    for box in boxes(data.shape, data.stride(), start - first, start - first + flat.numel()):
        at = first - start + sum(low * stride for (low, _), stride in zip(box, data.stride(), strict=True))
        sizes, strides = (*[1] * ahead, *(length for _, length in box)), (*[1] * ahead, *data.stride())
        lows = zip(view.global_offset, (*[0] * ahead, *(low for low, _ in box)), strict=True)
        yield ShardedTensor(
            f"{prefix}.{view.key}",
            flat.as_strided(sizes, strides, flat.storage_offset() + at),
            flat.dtype,
            sizes,
            view.global_shape,
            tuple(offset + low for offset, low in lows),
            None,  # boxes make no regular grid
            (*view.replica_id[:2], 0),  # each data-parallel rank has another slice
            allow_shape_mismatch=view.allow_shape_mismatch,
        )


def boxes(shape: Sequence[int], strides: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """The elements of a view that lie in a range of its memory, as few boxes that do not overlap.

    Args:
        shape: of the view.
        strides: of the view, in elements: the view permutes dimensions, and holds no element twice.
        start: of the range, in elements from the view's first one.
        stop: the end of the range.
    """
    order = [axis for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]) if shape[axis] > 1]
    spans = [1]
    for axis in reversed(order):
        assert strides[axis] >= spans[0], "a permutation of dimensions"
        spans.insert(0, spans[0] + (shape[axis] - 1) * strides[axis])

    def within(level: int, at: int, chosen: dict[int, tuple[int, int]]) -> Iterator[Box]:
        """Those among the elements whose indices of the first dimensions in memory are `chosen`; the first is `at`."""
        if level == len(order):
            if start <= at < stop:
                yield tuple(chosen.get(axis, (0, size)) for axis, size in enumerate(shape))
            return
        axis = order[level]
        stride, size, span = strides[axis], shape[axis], spans[level + 1]
        whole = range(max(0, -((at - start) // stride)), min(size, (stop - span - at) // stride + 1))
        if whole:
            lengths = {**chosen, axis: (whole.start, len(whole))}
            yield tuple(lengths.get(axis, (0, size)) for axis, size in enumerate(shape))
        for index in sorted({(start - at) // stride, (stop - 1 - at) // stride}):
            if 0 <= index < size and index not in whole:
                yield from within(level + 1, at + index * stride, {**chosen, axis: (index, 1)})

    return within(0, 0, {}) if 0 not in shape else iter(())
