"""`model.batch_invariant` in a trainer: no bit of a log-prob depends on the pack, and gradients are as without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.errors import SlimeError
from slime_megatron.train.model.invariant import check_layers
from slime_megatron.train.model.linear import RMSNorm
from slime_testing.ranks import Rank, run_ranks

from . import one_rank

LENGTHS = (2, 17, 2, 40, 2, 2, 23)
"""MKL adds up a row of two otherwise than one of many."""


def scores_of(rank: Rank, folder: Path) -> dict[bool, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """With the key and without: log-probs of a pack, of its sequences one after the other, and the pack's gradient."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime import plugins
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences
    from slime_megatron.train.weights.load import load_hf
    from slime_testing.models import run_config

    found = {}
    random = torch.Generator().manual_seed(7)
    sequences = [torch.randint(1, one_rank.HF["vocab_size"], (length,), generator=random) for length in LENGTHS]
    for wanted in (True, False):
        cfg = run_config("glm4", folder, {})
        cfg.model.batch_invariant = wanted
        megatron.initialize(cfg, *rank)
        bridge = plugins.load().models.create("glm4")
        [module] = (model := megatron.build(cfg, bridge, one_rank.HF)).modules
        load_hf(model.modules, bridge.weight_mapping(one_rank.HF), folder)

        def score(parts: Any, module: Any = module) -> torch.Tensor:
            tokens = torch.cat(parts)[None]
            borders = [0, *torch.tensor([len(part) for part in parts]).cumsum(0).tolist()]
            packed = PackedSequences.of(borders, 1, 0, tokens.device)
            labels = tokens.roll(-1, dims=1)
            given = (tokens, torch.zeros_like(tokens), None)
            scores: torch.Tensor = module(*given, labels=labels, packed_seq_params=packed)[0]
            return torch.cat([each[:-1] for each in scores.split([len(part) for part in parts])])

        with cpu_stands_in_for_cuda():
            together = score(sequences)
            together.sum().backward()
            with torch.no_grad():
                alone = torch.cat([score([sequence]) for sequence in sequences])
        gradient = torch.cat([parameter.main_grad.flatten() for parameter in module.parameters()])
        found[wanted] = together.detach().clone(), alone.clone(), gradient.clone()
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_rank.write_model(tmp_path_factory)


def test_packs_move_no_bit_and_gradients_stay(folder: Path) -> None:
    [found] = run_ranks(scores_of, 1, folder)
    together, alone, gradient = found[True]
    assert torch.equal(together, alone)
    other, other_alone, other_gradient = found[False]
    assert not torch.equal(other, other_alone), "or the key would be for nothing"
    torch.testing.assert_close(together, other, rtol=0, atol=1e-5)
    assert float((gradient - other_gradient).norm() / other_gradient.norm()) < 1e-5


@pytest.mark.parametrize("zero_centered", [False, True])
def test_what_engines_compute_otherwise_is_refused(zero_centered: bool) -> None:
    sizes = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "use_cpu_initialization": True}
    config = TransformerConfig(**sizes, layernorm_zero_centered_gamma=zero_centered)
    model = torch.nn.Sequential(RMSNorm(config, 8))
    if zero_centered:
        with pytest.raises(SlimeError, match=r"model\.batch_invariant: does not hold for RMSNorm"):
            check_layers(model)
    else:
        check_layers(model)
