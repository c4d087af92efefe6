"""Which rank belongs to which parallel group, and which layers each pipeline stage holds, as Megatron-core does it.

Rank order is Megatron's default `tp-cp-ep-dp-pp`: the leftmost dimension varies fastest. Dense layers use tp, cp, dp
and pp; expert layers see the same ranks as etp, ep, edp (expert data parallel) and pp
(megatron/core/parallel_state.py `RankGenerator`, transformer_block.py `get_num_layers_to_build`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.errors import SlimeError

DENSE = ("tp", "cp", "dp", "pp")
EXPERT = ("etp", "ep", "edp", "pp")
LAYOUT, MAX_LAYOUT = "train.megatron.pipeline_model_parallel_layout", 100_000
"""Characters of a written-out pipeline layout."""
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
SIZE_KEYS = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
}
"""Field of Megatron's TransformerConfig that gives each size."""


@dataclass(frozen=True)
class Grid:
    """The parallel sizes of `world_size` trainer ranks."""

    world_size: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    vpp: int = 1

    @property
    def dp(self) -> int:
        return self.world_size // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int:
        return self.world_size // (self.etp * self.ep * self.pp)

    @property
    def packing_align(self) -> int:
        """Every packed sequence is padded to a multiple of this: CP cuts it into 2 cp pieces, SP each piece into tp."""
        return self.tp * (2 * self.cp if self.cp > 1 else 1)

    def padded(self, tokens: int) -> int:
        """Tokens of a sequence, rounded up to `packing_align`."""
        return -(-tokens // self.packing_align) * self.packing_align

    def coordinates(self, rank: int) -> dict[str, int]:
        """The rank's place in every dimension, dense and expert."""
        return {**self._unravel(rank, DENSE), **self._unravel(rank, EXPERT)}

    def _unravel(self, rank: int, dimensions: tuple[str, ...]) -> dict[str, int]:
        place = {}
        for name in dimensions:
            rank, place[name] = divmod(rank, getattr(self, name))
        return place

    def groups(self, dimension: str) -> list[list[int]]:
        """The ranks of every group of one dimension (of `DENSE` or `EXPERT`), in Megatron's order."""
        dimensions = DENSE if dimension in DENSE else EXPERT
        members: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            place = self._unravel(rank, dimensions)
            members.setdefault(tuple(place[name] for name in dimensions if name != dimension), []).append(rank)
        return sorted(members.values())


def read_grid(num_trainers: int, megatron: Mapping[str, Any]) -> Grid:
    """The grid of `cluster.num_trainers` and `train.megatron`. Raises SlimeError if a size is below 1, or the sizes do
    not divide the number of ranks."""
    sizes = {name: megatron.get(key) for name, key in SIZE_KEYS.items()}
    for name, size in sizes.items():
        if size is not None and size < 1:
            where = f"train.megatron.{SIZE_KEYS[name]}"
            raise SlimeError(f"must be at least 1, got {size}", where=where, todo="Raise it.")
    filled = {name: size or 1 for name, size in sizes.items()}
    filled["etp"] = sizes["etp"] or default_etp(filled["tp"], filled["ep"])
    grid = Grid(num_trainers, **filled)
    for names in (("tp", "cp", "pp"), ("etp", "ep", "pp")):
        _require_divides(grid, names)
    return grid


def default_etp(tp: int, ep: int) -> int:
    """Ranks that share an expert unless `expert_tensor_parallel_size` says so: one, where that is right."""
    return 1 if trains_experts(tp, ep, 1) else tp


def trains_experts(tp: int, ep: int, etp: int) -> bool:
    """Whether Megatron-core sums the experts' gradients over the tensor-parallel ranks, whose tokens differ under
    sequence parallelism: it does not with another `etp` than `tp` and an `ep` below `tp`."""
    return etp == tp or ep >= tp


def _require_divides(grid: Grid, names: tuple[str, ...]) -> None:
    product = math.prod(getattr(grid, name) for name in names)
    if grid.world_size % product:
        sizes = " x ".join(f"{name} {getattr(grid, name)}" for name in names)
        below, above = grid.world_size // product * product, -(-grid.world_size // product) * product
        ranks = "1 trainer rank" if grid.world_size == 1 else f"{grid.world_size} trainer ranks"
        todo = f"Set it to {above}{f' or {below}' if below else ''}, or change the sizes in train.megatron."
        raise SlimeError(f"{ranks} cannot be divided by {sizes} = {product}", where="cluster.num_trainers", todo=todo)


def split_layers(num_layers: int, grid: Grid, megatron: Mapping[str, Any]) -> list[list[range]]:
    """Decoder layers by [pipeline stage][model chunk], numbered from 0. Raises SlimeError if the layers cannot be
    divided so."""
    layout = megatron.get("pipeline_model_parallel_layout")
    counts = _counts_of_layout(layout, num_layers, grid) if layout else _counts(num_layers, grid, megatron)
    stages: list[list[range]] = [[] for _ in range(grid.pp)]
    offset = 0
    for chunk in range(len(counts[0])):
        for stage in range(grid.pp):
            stages[stage].append(range(offset, offset + counts[stage][chunk]))
            offset += counts[stage][chunk]
    assert offset == num_layers, "every layer has one place"
    return stages


def _counts(num_layers: int, grid: Grid, megatron: Mapping[str, Any]) -> list[list[int]]:
    """Number of layers by [stage][chunk] without a layout string."""
    first = megatron.get(FIRST)
    last = megatron.get(LAST)
    embedding = int(bool(megatron.get("account_for_embedding_in_pipeline_split")))
    loss = int(bool(megatron.get("account_for_loss_in_pipeline_split")))
    if first is last is None:
        if not embedding + loss and grid.vpp == 1 and num_layers % grid.pp and num_layers > grid.pp:
            raise _indivisible(num_layers, f"{grid.pp} equal pipeline parts", _last_stage(num_layers, grid.pp))
        slots = [_share(num_layers + embedding + loss, grid.pp, num_layers)] * grid.pp
    else:
        slots = _uneven(num_layers, grid.pp, first, last)
    chunks = [[_share(slot, grid.vpp, num_layers)] * grid.vpp for slot in slots]
    chunks[0] = [chunks[0][0] - embedding, *chunks[0][1:]]
    chunks[-1] = [*chunks[-1][:-1], chunks[-1][-1] - loss]
    return chunks


def _uneven(num_layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    middle_stages = pp - (first is not None) - (last is not None)
    left = num_layers - (first or 0) - (last or 0)
    if left < 0 or (middle_stages == 0 and left):
        raise _indivisible(num_layers, f"a first stage of {first} and a last stage of {last}")
    middle = [_share(left, middle_stages, num_layers)] * middle_stages if middle_stages else []
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _share(layers: int, parts: int, num_layers: int) -> int:
    if layers % parts:
        counted = "" if layers == num_layers else f" ({layers} to divide)"
        raise _indivisible(num_layers, f"{parts} equal pipeline parts{counted}")
    return layers // parts


def _indivisible(num_layers: int, parts: str, way: str = "pipeline_model_parallel_layout") -> SlimeError:
    return SlimeError(
        f"{num_layers} layers cannot be divided into {parts}",
        where=f"train.megatron.{SIZE_KEYS['pp']}",
        todo=f"Choose another size, or give train.megatron.{way}.",
    )


def _last_stage(num_layers: int, pp: int) -> str:
    """The setting with which all other stages are equal."""
    lasts = [num_layers - of_others * (pp - 1) for of_others in (-(-num_layers // pp), num_layers // pp)]
    return f"{LAST}={next(layers for layers in lasts if layers > 0)}"


def _counts_of_layout(layout: str | list[list[str]], num_layers: int, grid: Grid) -> list[list[int]]:
    """Decoder layers by [stage][chunk] of `Et*3|(tt|)*29,m|L`: E embedding, t decoder, m prediction, L loss."""
    stages = _expand(layout) if isinstance(layout, str) else layout
    counts = [sum(name in ("t", "decoder") for name in stage) for stage in stages]
    if len(counts) % grid.pp or sum(counts) != num_layers:
        todo = f"Give a multiple of {grid.pp} parts (pipeline stages) that hold {num_layers} layers."
        raise SlimeError(f"the layout has {len(counts)} parts and {sum(counts)} layers", where=LAYOUT, todo=todo)
    return [counts[stage :: grid.pp] for stage in range(grid.pp)]


def _expand(layout: str) -> list[str]:
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        if sum(len(part) * int(count[:9]) for part, count in re.findall(pattern, text)) > MAX_LAYOUT:
            raise SlimeError(f"has over {MAX_LAYOUT:,} parts and layers", where=LAYOUT, todo="Correct its numbers.")
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    return text.split("|")


def divisors(number: int) -> list[int]:
    """Divisors of `number`, 1 and itself among them."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def listed(numbers: Iterable[int]) -> str:
    """For an error's sentence."""
    return ", ".join(map(str, numbers))
