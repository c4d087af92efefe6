"""`model.batch_invariant` in a trainer: no bit of a log-prob depends on the pack, and gradients are as without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime.errors import SlimeError
from slime_megatron.mixture_of_experts.layer import ExpertLayer, PackedMoELayer
from slime_megatron.train.model.invariant import check_layers
from slime_megatron.train.model.linear import RMSNorm
from slime_testing.contract import LOGITS_TOLERANCE
from slime_testing.models import random_model, write_checkpoint
from slime_testing.ranks import Rank, run_ranks

from . import one_rank

LENGTHS = (2, 17, 2, 40, 2, 2, 23)
"""MKL adds up a row of two otherwise than one of many."""


MODELS = Path(__file__).parents[3] / "models"
MIXTURES = {"glm4_moe": "glm4/tests/configs/moe.json", "qwen3_moe": "qwen3/tests/configs/moe.json"}
EP = {"expert_model_parallel_size": 2}
GROUPED = {"bf16": True, "moe_grouped_gemm": True}


class Scored(NamedTuple):
    """Log-probs of a pack's sequences, of each in a pack of its own, and the pack's gradient."""

    together: Tensor
    alone: Tensor
    gradient: Tensor


def scores_of(
    rank: Rank, hf: dict[str, Any], folder: Path, layouts: Mapping[str, tuple[bool, dict[str, Any]]]
) -> dict[str, Scored]:
    """By layout, with the key or without. The second rank has the sequences the other way round."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime import plugins
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences
    from slime_megatron.train.weights.load import load_hf
    from slime_testing.models import run_config

    found, sequences = {}, sequences_of(hf)
    order = range(len(sequences))[:: -1 if rank.rank else 1]
    for name, (wanted, layout) in layouts.items():
        cfg = run_config(hf["model_type"], folder, layout)
        cfg.model.batch_invariant = wanted
        megatron.initialize(cfg, *rank)
        bridge = plugins.load().models.create(hf["model_type"])
        [module] = (model := megatron.build(cfg, bridge, hf)).modules
        load_hf(model.modules, bridge.weight_mapping(hf), folder)

        def score(parts: list[Tensor], module: Any = module) -> list[Tensor]:
            tokens = torch.cat(parts)[None]
            borders = [0, *torch.tensor([len(part) for part in parts]).cumsum(0).tolist()]
            packed = PackedSequences.of(borders, 1, 0, tokens.device)
            labels = tokens.roll(-1, dims=1)
            given = (tokens, torch.zeros_like(tokens), None)
            scores: Tensor = module(*given, labels=labels, packed_seq_params=packed)[0]
            return [each[:-1] for each in scores.split([len(part) for part in parts])]

        with cpu_stands_in_for_cuda():
            together = torch.cat([*score([sequences[number] for number in order])][:: -1 if rank.rank else 1])
            together.sum().backward()
            with torch.no_grad():
                alone = torch.cat([each for sequence in sequences for each in score([sequence])])
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        gradient = torch.cat([parameter.main_grad.flatten() for parameter in learning])
        found[name] = Scored(together.detach().clone(), alone.clone(), gradient.clone())
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


def sequences_of(hf: Mapping[str, Any]) -> list[Tensor]:
    random = torch.Generator().manual_seed(7)
    return [torch.randint(1, hf["vocab_size"], (length,), generator=random) for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return one_rank.write_model(tmp_path_factory)


def check(found: Mapping[str, Scored]) -> None:
    """No pack moves a bit with the key, which moves values and gradients by rounding alone."""
    together, alone, gradient = found["with"]
    assert torch.equal(together, alone)
    other, other_alone, other_gradient = found["without"]
    assert not torch.equal(other, other_alone), "or the key would be for nothing"
    torch.testing.assert_close(together, other, rtol=0, atol=1e-5)
    assert float((gradient - other_gradient).norm() / other_gradient.norm()) < 1e-5


def test_packs_move_no_bit_and_gradients_stay(folder: Path) -> None:
    [found] = run_ranks(scores_of, 1, one_rank.HF, folder, {"with": (True, {}), "without": (False, {})})
    check(found)


@pytest.mark.slow
@pytest.mark.parametrize("family", MIXTURES)
def test_so_do_mixtures_of_experts_however_experts_are_shared_out(family: str, tmp_path: Path) -> None:
    """And values are those of transformers' class, which routes and sums by itself."""
    hf = json.loads((MODELS / MIXTURES[family]).read_text())
    write_checkpoint(hf, tmp_path)
    layouts = {"with": (True, {}), "without": (False, {}), "bf16": (True, {"bf16": True}), "grouped": (True, GROUPED)}
    [found] = run_ranks(scores_of, 1, hf, tmp_path, layouts, timeout_s=100)
    check(found)
    assert torch.equal(found["bf16"].together, found["bf16"].alone)
    assert torch.equal(found["grouped"].together, found["bf16"].together), "how the weights of experts lie"
    for of_rank in run_ranks(scores_of, 2, hf, tmp_path, {"shared out": (True, EP)}, timeout_s=100):
        assert torch.equal(of_rank["shared out"].together, found["with"].together)
        assert torch.equal(of_rank["shared out"].alone, found["with"].together)
    model = random_model(hf)
    with torch.no_grad():
        wanted = [
            model(each[None]).logits[0, :-1].double().log_softmax(-1).gather(1, each[1:, None])[:, 0]
            for each in sequences_of(hf)
        ]
    torch.testing.assert_close(found["with"].together.double(), torch.cat(wanted), rtol=0, atol=LOGITS_TOLERANCE)


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


@pytest.mark.parametrize("kind", [PackedMoELayer, ExpertLayer])
def test_megatrons_own_mixture_of_experts_is_refused(kind: type[PackedMoELayer]) -> None:
    torch.nn.Module.__init__(layer := kind.__new__(kind))
    if kind is PackedMoELayer:
        with pytest.raises(SlimeError, match=r"model\.batch_invariant: does not hold for PackedMoELayer"):
            check_layers(layer)
    else:
        check_layers(layer)
