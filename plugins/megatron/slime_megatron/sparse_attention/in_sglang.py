"""What SGLang makes of sparse attention, for whoever checks that a version of weights is whole there."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def idle_indexers(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """SGLang gives an indexer to every layer of sparse attention, also to those that reuse the keys of an earlier one
    (`skip_topk`), for which checkpoints hold none. A prediction layer's runs where it has nothing to reuse."""
    for module in model.modules():
        if getattr(module, "skip_topk", False) and not module.is_nextn:
            yield module.get_submodule("indexer")
