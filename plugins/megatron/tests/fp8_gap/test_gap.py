"""What makes engine and trainer differ, by cause: every score against transformers' of the same weights, in fp32.

Sums run in another order there, which costs about 1e-6 nats a token; a router that chooses otherwise costs 1e-1.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.types import TrainSample
from slime.weights.quantized import quantized, quantizer_of
from slime_megatron.fp8_block.config import BLOCK, Fp8Format
from slime_testing.contract import EP, TP, UNEVEN
from slime_testing.engines import hf_tensors
from slime_testing.generation import hold
from slime_testing.models import random_model, write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

TOLERANCE = 1e-5
CONFIG = Path(__file__).parents[3] / "models/glm4/tests/configs/dense.json"
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96}
DENSE: Mapping[str, Any] = json.loads(CONFIG.read_text()) | SMALL
QUANTIZER = quantizer_of(Fp8Format())
MOE: Mapping[str, Any] = {
    **{key: value for key, value in DENSE.items() if key != "rope_parameters"},
    "eos_token_id": 0,
    "first_k_dense_replace": 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 2 * BLOCK,  # two ranks cut between blocks
    "model_type": "glm4_moe",
    "moe_intermediate_size": 2 * BLOCK,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
    "routed_scaling_factor": 2.5,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_qk_norm": True,
}
LAYOUTS: Mapping[int, Mapping[str, Mapping[str, int]]] = {
    1: {"one rank": {}},
    2: {"tp2-ep2": {TP: 2, EP: 2}, "tp2-etp2": {TP: 2, "expert_tensor_parallel_size": 2}, "pp2": UNEVEN},
}
Explained = dict[str, tuple[dict[str, float], bool]]
"""By layout: metrics, and whether the weights are what they were."""


def explained(
    rank: Rank,
    family: str,
    folder: Path,
    samples: Sequence[TrainSample],
    layouts: Mapping[str, Mapping[str, int]],
    activations: bool = False,
) -> Explained:
    """Runs in every rank."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.config.schema import SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.fp8_gap.gap import explain
    from slime_megatron.train import reference
    from slime_megatron.train.trainer import Trainer

    found = {}
    for name, layout in layouts.items():
        cfg = SlimeConfig()
        cfg.model.family, cfg.model.path, cfg.rollout.fp8 = family, str(folder), "block"
        cfg.train.megatron = dict(layout)
        trainer = Trainer(cfg, *rank)
        trainer.init_weights()
        packing = {"align": trainer.packing_align, "loss_mean": cfg.algo.loss_mean}
        [batch] = pack(samples, num_dp=trainer.data_parallel_size, max_tokens=128, **packing)
        before = reference.copy_weights(trainer.model.modules)
        with cpu_stands_in_for_cuda():
            local = trainer._local(batch)
            if activations:
                inventory = trainer.inventory.local
                values = explain(trainer.model, inventory, Fp8Format(), local, activations=True)
            else:
                values = trainer.explain(local)
        after = reference.copy_weights(trainer.model.modules)
        same = [one[name].equal(other[name]) for one, other in zip(before, after, strict=True) for name in one]
        found[name] = values, bool(same) and all(same)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


@torch.no_grad()
def logprobs(model: torch.nn.Module, samples: Sequence[TrainSample]) -> list[torch.Tensor]:
    """Of the responses' tokens."""
    found = []
    for sample in samples:
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        logits = model(tokens[None]).logits[0, -count - 1 : -1]
        found.append(logits.log_softmax(-1).gather(1, tokens[-count:, None])[:, 0])
    return found


def told(samples: Sequence[TrainSample], logprobs: Sequence[torch.Tensor]) -> list[TrainSample]:
    """The samples as of an engine with these log-probs. Half of the tokens are of older weights, and far off."""
    found = []
    for sample, values in zip(samples, logprobs, strict=True):
        current = np.arange(len(values), dtype=np.float32) % 2
        engine = values.numpy() + 3 * (1 - current)
        found.append(sample.with_columns(rollout_logprobs=engine, is_current=current))
    return found


def mean_difference(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor], masks: Sequence[Any]) -> float:
    """Over loss tokens of the current weights."""
    apart = [(one - other).abs()[1::2] for one, other in zip(ones, others, strict=True)]
    kept = [torch.from_numpy(mask)[1::2] for mask in masks]
    return float(torch.cat(apart) @ torch.cat(kept) / torch.cat(kept).sum())


@pytest.mark.slow
def test_a_mixture_of_experts_in_every_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(MOE, tmp_path)
    plain, held = random_model(MOE).eval(), random_model(MOE).eval()
    hold(held, dict(quantized(hf_tensors(held), QUANTIZER)), QUANTIZER)
    samples = recorded_samples(12, MOE["vocab_size"])
    benchmarks = Path(__file__).parents[4] / "benchmarks"
    monkeypatch.syspath_prepend(benchmarks)
    fp8_gap = runpy.run_path(str(benchmarks / "fp8_gap.py"))
    in_fp8 = logprobs(held, samples)
    own, same_experts = [], []
    for sample in samples:  # choices are repeated sequence by sequence
        routes = fp8_gap["recorded"](plain)
        own += logprobs(plain, [sample])
        forget(plain)
        fp8_gap["replay"](held, routes)
        same_experts += logprobs(held, [sample])
        forget(held)
    masks = [sample.loss_mask for sample in samples]
    wanted = {
        "gap/weights": mean_difference(same_experts, own, masks),
        "gap/experts": mean_difference(in_fp8, same_experts, masks),
        "gap/rest": 0.0,
    }
    assert wanted["gap/experts"] > 100 * TOLERANCE, "no token takes other experts"
    for world_size, layouts in LAYOUTS.items():
        for of_rank in run_ranks(explained, world_size, "glm4_moe", tmp_path, told(samples, in_fp8), layouts):
            for layout, (values, restored) in of_rank.items():
                assert restored, f"{layout}: weights have changed"
                assert values.pop("gap/num_tokens") == sum(mask[1::2].sum() for mask in masks), layout
                assert values == pytest.approx(wanted, abs=TOLERANCE), layout


def forget(model: torch.nn.Module) -> None:
    """The routers' own choices again."""
    for module in model.modules():
        module.__dict__.pop("route_tokens_to_experts", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hf", "megatron"),
    [(DENSE, {}), (MOE, {}), (MOE, {"moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall"})],
    ids=["dense", "mixture", "grouped"],
)
def test_what_rounded_activations_cost(tmp_path: Path, hf: Mapping[str, Any], megatron: dict[str, Any]) -> None:
    """A number that lies between two of E4M3 goes to the other one once in 10^5, by fp32's last bits: 0.05 nats. In a
    mixture a router that is close to a tie may choose otherwise then; the input of the experts' second product left as
    it is would be 0.4 of the cost."""
    write_checkpoint(hf, tmp_path)
    held = random_model(hf).eval()
    hold(held, dict(quantized(hf_tensors(held), QUANTIZER)), QUANTIZER)
    samples = recorded_samples(12, hf["vocab_size"])
    in_fp8 = logprobs(held, samples)
    if "n_routed_experts" in hf:
        held.set_experts_implementation("eager")  # which multiplies by `linear`, as all else does
    exact = {name: module.weight for name, module in held.named_modules() if name.endswith(("lm_head", "mlp.gate"))}
    with Rounding([weight.data_ptr() for weight in exact.values()]) as rounding:
        activations = logprobs(held, samples)
    assert rounding.num_rounded > 0
    engine = told(samples, activations)
    [of_rank] = run_ranks(explained, 1, hf["model_type"], tmp_path, engine, {"it": megatron}, True)
    values, restored = of_rank["it"]
    assert restored
    assert values.keys() - {"gap/experts"} == {"gap/weights", "gap/activations", "gap/rest", "gap/num_tokens"}
    cost = mean_difference(activations, in_fp8, [sample.loss_mask for sample in samples])
    assert cost > 1e-3
    share = 0.15 if hf is MOE else 0.05
    assert values["gap/rest"] < share * cost
    assert values["gap/activations"] == pytest.approx(cost, rel=share)


class Rounding(torch.overrides.TorchFunctionMode):
    """Inside, what `torch.nn.functional.linear` multiplies with other weights than the `exact` ones is rounded."""

    def __init__(self, exact: Sequence[int]) -> None:
        super().__init__()
        self._exact, self.num_rounded = exact, 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.linear and args[1].data_ptr() not in self._exact:
            self.num_rounded += 1
            args = (rounded(args[0]), *args[1:])
        return function(*args, **(kwargs or {}))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """To E4M3 by its definition: 3 bits of mantissa, exponents from -6 on, groups of 128 scaled to 448; in float64."""
    groups = values.double().split(BLOCK, -1)
    found = []
    for group in groups:
        scale = group.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
        scaled = group / scale
        step = torch.exp2(scaled.abs().clamp(min=2.0**-6).log2().floor() - 3)
        found.append((scaled / step).round() * step * scale)
    return torch.cat(found, -1).to(values.dtype)
