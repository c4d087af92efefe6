"""What a plan says of the time that trainers wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from slime.algo.stages import run_stages
from slime.imports import importing
from slime.layout import split_layers
from slime.plan.flops import attention_of
from slime.plan.work import sharing
from slime.sizes.model import ModelSizes
from slime_tools.bubbles.lengths import Lengths, lengths_of, num_together

if TYPE_CHECKING:
    from slime.train.bins import Shape
    from slime_tools.bubbles.packs import Bubbles

TITLE = "trainers wait, if lengths are spread evenly up to their limits"


class Waiting:
    """A `slime.sizes.estimate.PlanPart`.

    Attributes:
        bubbles: of a step; None where no rank has another one to wait for, no sequence fits a micro-batch, or numpy is
            missing, in which the packer is written.
    """

    def __init__(self, sizes: ModelSizes) -> None:
        self._grid = sizes.topology.grid
        packs = self._grid.dp * self._grid.pp > 1 and find_spec("numpy") is not None
        cfg = sizes.topology.config
        stage, most = run_stages(cfg).all[-1], cfg.train.max_tokens_per_micro_batch
        lengths = lengths_of(stage, cfg.rollout, cfg.sft.batch_size, most, self._grid) if packs else None
        self.bubbles = _bubbles(sizes, lengths) if lengths else None

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self.bubbles:
            yield TITLE, [*self._lines(self.bubbles)]

    def brief(self) -> Mapping[str, str]:
        return {}

    def document(self) -> Mapping[str, Any]:
        found = self.bubbles
        return {"bubbles": {name: round(value, 4) for name, value in found._asdict().items()} if found else None}

    def _lines(self, found: Bubbles) -> Iterator[str]:
        grid, together = self._grid, num_together(self._grid)
        for_whom = f"at its end for the busiest of {grid.dp} ranks"
        if together > 1:
            for_whom = f"at each micro-batch for the largest of {together} ranks that share experts"
        if grid.dp > 1:
            yield f"  data parallel  {found.ranks:>6.1%} of a step's passes, {for_whom}"
        if grid.pp > 1:
            through = f"on the way of {found.micro_batches:,.1f} micro-batches through {grid.pp} stages"
            yield f"  pipeline       {found.pipeline:>6.1%} of a step's passes, {through}"


def _bubbles(sizes: ModelSizes, lengths: Lengths) -> Bubbles:
    with importing():  # numpy takes most of what the part costs a plan
        from slime_tools.bubbles.packs import foretold

    chunks = len(split_layers(sizes.model["num_layers"], sizes.topology.grid, sizes.model)[0])
    return foretold(lengths, sizes.topology.grid, chunks, shape_of(sizes, chunks, are_pairs=lengths.are_pairs))


def shape_of(sizes: ModelSizes, chunks: int, *, are_pairs: bool) -> Shape:
    """What trainers tell of their layout. Samples of a group share their prompt as in the run."""
    from slime.train.bins import Shape

    cfg, grid = sizes.topology.config, sizes.topology.grid
    cap, multiple = cfg.train.max_tokens_per_micro_batch, grid.pp if chunks > 1 else 1
    attention = attention_of(sizes.model, sizes.weights)
    shares = sharing(cfg.train, cfg.cluster, grid)
    return Shape(grid.dp, multiple, grid.packing_align, cap, shares, attention, are_pairs)
