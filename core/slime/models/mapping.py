"""The declarative HF <-> Megatron table: which tensors correspond, and where the rows of one lie in the other.

Everything here is data and integer arithmetic; no torch. One description serves both directions and every parallel
layout: `Layout.pieces` lists the blocks a tensor-parallel shard shares with each HF tensor, loading copies them one way
and exporting the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slime.models.blocks import BuildingBlock
    from slime.models.shapes import Shape

MEGATRON = "decoder.layers.{layer}."
HF = "model.layers.{layer}."
"""What the names of a decoder layer's tensors begin with."""


@dataclass(frozen=True)
class Shard:
    """The part of a parameter that a rank holds: number `rank` of `size` equal parts along `dim`."""

    rank: int = 0
    size: int = 1
    dim: int = 0


@dataclass(frozen=True)
class Piece:
    """`length` rows that HF tensor number `index` has at `source` and a parameter's shard at `target`.

    "Rows" are counted along the parameter's partition dimension, which row-parallel linears have at 1.
    """

    index: int
    source: int
    target: int
    length: int


@dataclass(frozen=True)
class Layout:
    """How the rows of the HF tensors lie in one Megatron parameter.

    The parameter is a row of equal units; in each lie `parts[0]` shares of rows of the first HF tensor, then `parts[1]`
    shares of the second, and so on. Tensor parallelism cuts between units.

    Attributes:
        parts: shares of a unit, one an HF tensor.
        num_units: units of the whole parameter; None means one for each tensor-parallel shard, which is how Megatron
            lays out gate and up: [gate 0 | up 0] on the first rank, [gate 1 | up 1] on the second.
        fused: the parts are concatenated in a single HF tensor instead of in one each.
        num_rows: rows of the HF tensor if the parameter has more (vocabulary padding); those stay zero.
    """

    parts: tuple[int, ...] = (1,)
    num_units: int | None = None
    fused: bool = False
    num_rows: int | None = None

    def hf_shapes(self, shape: Sequence[int], shard: Shard) -> list[tuple[int, ...]]:
        """Shapes of the whole HF tensors, from the `shape` of one shard."""
        before, rows, after = shape[: shard.dim], shape[shard.dim] * shard.size, shape[shard.dim + 1 :]
        lengths = [rows * part // sum(self.parts) for part in self.parts]
        if self.fused:
            lengths = [sum(lengths)]
        if self.num_rows is not None:
            lengths = [self.num_rows]
        return [(*before, length, *after) for length in lengths]

    def pieces(self, length: int, shard: Shard) -> Iterator[Piece]:
        """The blocks of a shard with `length` rows, in the order of the shard's rows."""
        num_units = self.num_units or shard.size
        assert num_units % shard.size == 0, "tensor parallelism cuts between units"
        unit_rows = length * shard.size // num_units
        rows = [unit_rows * part // sum(self.parts) for part in self.parts]
        starts = [0, *accumulate(count * num_units for count in rows)] if self.fused else [0] * len(rows)
        units_per_shard = num_units // shard.size
        target = 0
        for unit in range(shard.rank * units_per_shard, (shard.rank + 1) * units_per_shard):
            for part, count in enumerate(rows):
                source = starts[part] + unit * count
                if kept := self._unpadded(source, count):
                    yield Piece(0 if self.fused else part, source, target, kept)
                target += count

    def _unpadded(self, source: int, count: int) -> int:
        return count if self.num_rows is None else max(0, min(count, self.num_rows - source))


@dataclass(frozen=True)
class Rule:
    """One line of the table. `{layer}` and `{expert}` in the names count over the whole model, not over a rank.

    Attributes:
        megatron: name of the parameter or buffer, as `GPTModel.state_dict` has it on one rank.
        hf: names of the HF tensors it is made of.
        layers: layers that have it; None means all. Ignored by names without `{layer}`.
        exported: False for a second copy of the same HF tensor (tied embeddings on the last pipeline stage).
        drafts: it belongs to a part that drafts: an engine has it only when it speculates by it.
        learns_by: keys of the config that all must be set for it to learn (`slime.models.traits.Traits.learns_by`).
        optional: a checkpoint may lack it, and then it stays as it was made.
        untied: of a tied parameter, the HF tensor that it would be if it were not: a checkpoint may hold that, too.
        block: the building block it belongs to; None: one that states nothing, and then `slime plan` knows no sizes.
        part: the parameter's name as the block states it, from inside its layer.
    """

    megatron: str
    hf: tuple[str, ...]
    layout: Layout = Layout()
    layers: tuple[int, ...] | None = None
    exported: bool = True
    drafts: bool = False
    learns_by: tuple[str, ...] = ()
    optional: bool = False
    untied: str = ""
    block: BuildingBlock | None = None
    part: str = ""

    def of(self, block: BuildingBlock) -> Rule:
        """The same rule, as one of this block."""
        return replace(self, block=block, part=self.megatron.removeprefix(MEGATRON))

    @property
    def shape(self) -> Shape | None:
        """What the block states of the parameter."""
        return self.block.shapes.get(self.part) if self.block else None

    @property
    def per_layer(self) -> bool:
        return "{layer}" in self.megatron

    @property
    def per_expert(self) -> bool:
        return "{expert}" in self.megatron


@dataclass(frozen=True)
class Entry:
    """A rule applied to one layer and expert: full names on both sides."""

    megatron: str
    hf: tuple[str, ...]
    rule: Rule


@dataclass(frozen=True)
class WeightMapping:
    """The table of one model, complete: every tensor its checkpoint holds is named by a rule or ignored by name.

    Attributes:
        rules: in the order in which tensors are exported; consecutive per-layer rules run layer by layer.
        num_layers: decoder layers of the model.
        num_experts: routed experts a layer, 0 in a dense model.
        ignored: HF tensors that a checkpoint may hold and that are not loaded.
        copies: HF tensors that a checkpoint may hold a second time, by the name of the copy. Only the original is
            loaded; a folder that is saved has the copies that its source has.
        adapts: it is the table of adapters (`slime.topology.adapters`), and has no parameter of the model itself.
    """

    rules: tuple[Rule, ...]
    num_layers: int
    num_experts: int = 0
    ignored: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    adapts: bool = False

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        runs = groupby(self.rules, key=lambda rule: rule.per_layer)
        return tuple(entry for per_layer, rules in runs for entry in self._run(per_layer, list(rules)))

    @cached_property
    def by_megatron_name(self) -> dict[str, Entry]:
        return {entry.megatron: entry for entry in self.entries}

    @cached_property
    def hf_names(self) -> frozenset[str]:
        return frozenset(name for entry in self.entries for name in entry.hf)

    @cached_property
    def optional_names(self) -> frozenset[str]:
        return frozenset(name for entry in self.entries if entry.rule.optional for name in entry.hf)

    @cached_property
    def tied(self) -> Mapping[str, str]:
        """HF tensors that a checkpoint may hold beside those that they are tied to, or in their place, by name."""
        return {rule.untied: rule.hf[0] for rule in self.rules if rule.untied}

    @cached_property
    def blocks(self) -> frozenset[BuildingBlock]:
        """The building blocks that the model is made of, as far as they state themselves."""
        return frozenset(rule.block for rule in self.rules if rule.block)

    @cached_property
    def draft_names(self) -> frozenset[str]:
        return frozenset(name for entry in self.entries if entry.rule.drafts for name in entry.hf)

    def _run(self, per_layer: bool, rules: list[Rule]) -> Iterator[Entry]:
        for layer in range(self.num_layers if per_layer else 1):
            for rule in rules:
                has_it = not per_layer or rule.layers is None or layer in rule.layers
                for expert in range(self.num_experts if rule.per_expert else 1) if has_it else ():
                    hf = tuple(name.format(layer=layer, expert=expert) for name in rule.hf)
                    yield Entry(rule.megatron.format(layer=layer, expert=expert), hf, rule)
