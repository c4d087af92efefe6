"""What a version must write into an engine's model with sparse attention."""

from __future__ import annotations

import pytest
import torch

from slime_sglang.engine.hooks import _own_parameters


class Attention(torch.nn.Module):
    """Under the names that SGLang's latent attention has for them."""

    def __init__(self, *, skip_topk: bool | None, is_nextn: bool) -> None:
        super().__init__()
        self.skip_topk, self.is_nextn = skip_topk, is_nextn
        self.o_proj = torch.nn.Linear(2, 2, bias=False)
        if skip_topk is not None:
            self.indexer = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("skip_topk", "is_nextn", "must_have_indexer"),
    [(False, False, True), (True, False, False), (True, True, True), (None, False, False)],
)
def test_indexers_that_never_run_need_no_weights(
    skip_topk: bool | None, is_nextn: bool, must_have_indexer: bool
) -> None:
    model = torch.nn.ModuleList([Attention(skip_topk=skip_topk, is_nextn=is_nextn)])
    indexer = {"0.indexer.weight", "0.indexer.bias"} if must_have_indexer else set()
    assert {name for name, _ in _own_parameters(model)} == {"0.o_proj.weight"} | indexer
