"""What a trainer rank gives of its weights: to engines, as an HF folder, as adapters."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from slime.config.schema import SlimeConfig
from slime.files import folder_aside
from slime.models.bridge import HfConfig
from slime.models.mapping import WeightMapping
from slime_megatron.train.megatron import Model
from slime_megatron.train.weights.adapters import WithAdapters
from slime_megatron.train.weights.export import BUCKET_BYTES, Inventory, export_hf, take_inventory

if TYPE_CHECKING:
    from slime.weights.portions import Export, Receivers
    from slime.weights.quantized import Quantizer


class Exports:
    """Of one rank; every method is collective.

    Attributes:
        exported: config.json of what it writes.
        mapping: of the model's weights.
    """

    cfg: SlimeConfig
    exported: HfConfig
    model: Model
    mapping: WeightMapping

    def export(
        self, bucket_bytes: int = BUCKET_BYTES, *, everywhere: bool = False, quantizer: Quantizer | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """HF names and full tensors of the current weights, on rank 0 or everywhere; a rank that receives none runs
        through it for nothing. See `slime_megatron.train.weights.export.export_hf`."""
        return export_hf(
            self.model.modules,
            self.mapping,
            bucket_bytes,
            everywhere=everywhere,
            quantizer=quantizer,
            inventory=self.inventory,
        )

    def export_hf(self, source: Path, destination: Path) -> None:
        """Write the current weights as an HF folder, and the model's adapters beside it. What an earlier end of the run
        left is replaced when the new one is whole."""
        from slime_megatron.train.weights.save_hf import save_hf

        tensors = self.export()
        if dist.get_rank() == 0:
            save_hf(tensors, source, destination, hf=self.exported, copies=self.mapping.copies, replace=True)
        for _ in tensors:
            pass
        if self.model.adapters:
            self.save_adapters(destination.with_name("adapter"))

    def save_adapters(self, folder: Path) -> None:
        """Write the model's adapters in their own form; a folder that is there already is replaced."""
        assert self.model.adapters, "asked of a model that has some"
        mapping = self.model.adapters.mapping(self.mapping)
        tensors = list(export_hf(self.model.modules, mapping, inventory=self.adapter_inventory))
        if dist.get_rank() == 0:
            with folder_aside(folder, replace=True) as aside:
                self.model.adapters.save(tensors, aside, self.mapping, self.cfg.model.path)

    def export_plan(
        self,
        bucket_bytes: int,
        receivers: Receivers,
        *,
        drafts: bool,
        quantizer: Quantizer | None,
        whole: bool = True,
    ) -> Export:
        """See `slime.train.rank.TrainerRank`."""
        adapters = self.model.adapters
        beside = adapters and adapters.scale_beside
        of_weights = self.inventory.export(
            self.mapping, bucket_bytes, receivers, drafts=drafts, quantizer=quantizer, merged=not beside
        )
        if not (adapters and beside):
            return of_weights
        of_adapters = self.adapter_inventory.export(adapters.mapping(self.mapping), bucket_bytes, receivers)
        return WithAdapters(of_weights if whole else None, of_adapters, beside)

    @cached_property
    def inventory(self) -> Inventory:
        """This rank's weights, and who else holds what of them."""
        return take_inventory(self.model.modules, self.mapping)

    @cached_property
    def adapter_inventory(self) -> Inventory:
        """The same of the adapters' parameters."""
        assert self.model.adapters, "asked of a model that has some"
        return take_inventory(self.model.modules, self.model.adapters.mapping(self.mapping))
