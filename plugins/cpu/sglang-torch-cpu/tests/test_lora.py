"""What SGLang would page-lock for adapters stays where it is."""

import torch

from sglang_torch_cpu.parallel import unpinned


def test_nothing_is_page_locked() -> None:
    def prepare() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2, pin_memory=True), torch.arange(3).pin_memory()

    zeros, numbers = unpinned(prepare)
    assert zeros.tolist() == [0, 0]
    assert numbers.tolist() == [0, 1, 2]
