"""Log-probs and gradients of the head in fp32, of a model in bf16, in every kind of layout: beside transformers' own
output layer in fp32 over the very hidden states that the trainer's head was given, and beside the same in float64.

Logits reach 40, as a trained model's do: bf16 has steps of 1/4 there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

from . import one_rank

HF = {**one_rank.HF, "intermediate_size": 64}
"""SGLang pads other widths on a CPU in bf16."""
SHARP = 16
LAYOUTS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    1: {"one rank": {}},
    2: {
        "tp2": {"tensor_model_parallel_size": 2},  # and sequence parallelism, which slime sets
        "cp2": {"context_parallel_size": 2},
        "pp2": {"pipeline_model_parallel_size": 2},
    },
}
LOGPROB, GRADIENT = 2e-5, 4e-3
"""Largest difference in nats: sums of 32 products of order 40 in fp32. And relative Euclidean distance: the logits'
gradient is rounded to bf16, 2^-9."""

Scored = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""hidden [s, 1, hidden_size], labels [1, t], scores [2, t] and their gradient, of one call of the head."""


def heads(rank: Rank, folder: Path, layouts: Mapping[str, Any], fp32: bool) -> dict[str, tuple[list[Scored], Any]]:
    """By layout: what this rank's head was given and returned, and the gradient of its part of the output layer."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime import plugins
    from slime.algo.sft import Sft
    from slime.config.schema import LossMean
    from slime.train.packing import pack
    from slime_megatron.train import megatron
    from slime_megatron.train.local_batch import local_micro_batches
    from slime_megatron.train.objective import StepLoss
    from slime_megatron.train.step import GradientCheck, accumulate_gradients
    from slime_megatron.train.weights.load import load_hf
    from slime_testing.models import run_config
    from slime_testing.recorded import recorded_samples

    found = {}
    for name, layout in layouts.items():
        cfg = run_config("glm4", folder, {"bf16": True, **layout})
        cfg.train.ddp, cfg.train.logprob_chunk_tokens = {"use_distributed_optimizer": False}, 32
        cfg.model.fp32_lm_head = fp32
        megatron.initialize(cfg, *rank)
        bridge = plugins.load().models.create("glm4")
        model = megatron.build(cfg, bridge, HF)
        load_hf(model.modules, bridge.weight_mapping(HF), folder)
        GradientCheck(model)
        module, scored = model.modules[-1], []
        _record(module, scored)
        mean = {"align": 4, "max_tokens": 100, "loss_mean": LossMean.token}
        (batch,) = pack(recorded_samples(12, HF["vocab_size"]), num_dp=1, **mean)
        with cpu_stands_in_for_cuda():
            micro_batches = local_micro_batches(batch, torch.device("cpu"))
            accumulate_gradients(model, micro_batches, StepLoss(Sft(), micro_batches, {}, is_first=True))
        gradient = module.output_layer.weight.main_grad.clone() if module.post_process else None
        found[name] = ([tuple(each) for each in scored], gradient)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


def _record(module: Any, scored: list[list[torch.Tensor]]) -> None:
    score = module.score

    def recording(hidden: torch.Tensor, labels: torch.Tensor, **options: Any) -> torch.Tensor:
        scores: torch.Tensor = score(hidden, labels, **options)
        scored.append([hidden.detach().clone(), labels.clone(), scores.detach().clone()])
        scores.register_hook(scored[-1].append)
        return scores

    module.score = recording


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from safetensors.torch import load_file, save_file

    from slime_testing.models import write_checkpoint

    found = tmp_path_factory.mktemp("model")
    write_checkpoint(HF, found, dtype=torch.bfloat16)
    tensors = load_file(found / "model.safetensors")
    tensors["lm_head.weight"] *= SHARP
    save_file(tensors, found / "model.safetensors", metadata={"format": "pt"})
    return found


@pytest.fixture(scope="module")
def output_layer(folder: Path) -> torch.nn.Module:
    """transformers' own."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.lm_head  # type: ignore[no-any-return]


def reference(output_layer: torch.nn.Module, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[2, t] log-probs and entropies."""
    logp = output_layer(hidden).log_softmax(-1)
    return torch.stack([logp.gather(1, labels[0, :, None])[:, 0], -(logp.exp() * logp).sum(1)])


def calls(results: list[tuple[list[Scored], Any]]) -> list[Scored]:
    """Of all ranks that have a head of their own tokens; under sequence parallelism with the hidden states of both."""
    of_ranks = [scored for scored, _ in results if scored]
    if of_ranks[0][0][0].size(0) < of_ranks[0][0][1].size(1):
        parts = zip(*of_ranks, strict=True)
        return [(torch.cat([hidden for hidden, *_ in each]), *each[0][1:]) for each in parts]
    same = len(of_ranks) > 1 and torch.equal(of_ranks[0][0][1], of_ranks[1][0][1])
    return [call for scored in (of_ranks[:1] if same else of_ranks) for call in scored]


@pytest.mark.parametrize("num_ranks", LAYOUTS)
def test_the_head_is_that_of_fp32(folder: Path, output_layer: torch.nn.Module, num_ranks: int) -> None:
    layouts = LAYOUTS[num_ranks]
    results = run_ranks(heads, num_ranks, folder, layouts, True, timeout_s=100)
    exact = torch.nn.Linear(*output_layer.weight.shape[::-1], bias=False, dtype=torch.float64)
    exact.load_state_dict(output_layer.state_dict())
    for name in layouts:
        of_ranks, gradient = [result[name] for result in results], 0
        for hidden, labels, scores, factors in calls(of_ranks):
            rows = hidden[:, 0]
            assert rows.dtype == torch.bfloat16
            assert float(exact(rows.double()).abs().max()) > 20
            with torch.no_grad():
                torch.testing.assert_close(scores, reference(output_layer, rows.float(), labels), rtol=0, atol=LOGPROB)
            wanted = reference(exact, rows.double(), labels)
            torch.testing.assert_close(scores.double(), wanted.detach(), rtol=0, atol=LOGPROB)
            gradient = gradient + torch.autograd.grad((wanted * factors).sum(), exact.weight)[0]
        found = [each for _, each in of_ranks if each is not None]
        whole = torch.cat(found) if "tp2" in name else found[-1]
        assert float((whole - gradient).norm() / gradient.norm()) < GRADIENT, name


def test_without_the_key_bf16_rounds_it(folder: Path, output_layer: torch.nn.Module) -> None:
    [found] = run_ranks(heads, 1, folder, LAYOUTS[1], False)
    off = [
        (scores - reference(output_layer, hidden[:, 0].float(), labels)).abs().max()
        for hidden, labels, scores, _ in calls([found["one rank"]])
    ]
    assert float(max(off)) > 1e3 * LOGPROB


def logprobs_of(rank: Rank, folder: Path, fp32: bool, sequences: list[list[int]]) -> list[torch.Tensor]:
    """[tokens - 1] of each sequence, by a model in bf16."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime import plugins
    from slime_megatron.train import megatron
    from slime_megatron.train.model.packed.sequences import PackedSequences
    from slime_megatron.train.weights.load import load_hf
    from slime_testing.models import run_config

    cfg = run_config("glm4", folder, {"bf16": True})
    cfg.model.fp32_lm_head = fp32
    megatron.initialize(cfg, *rank)
    bridge = plugins.load().models.create("glm4")
    [module] = (model := megatron.build(cfg, bridge, HF)).modules
    load_hf(model.modules, bridge.weight_mapping(HF), folder)
    found = []
    with cpu_stands_in_for_cuda(), torch.no_grad():
        for sequence in sequences:
            tokens = torch.tensor([sequence])
            packed = PackedSequences.of([0, len(sequence)], 1, 0, tokens.device)
            given = (tokens, torch.zeros_like(tokens), None)
            scores = module.eval()(*given, labels=tokens.roll(-1, dims=1), packed_seq_params=packed)
            found.append(scores[0, :-1].clone())
    return found


@pytest.mark.slow
def test_engine_and_trainer_come_nearer(folder: Path, tmp_path: Path) -> None:
    """By a tenth: both sides round equal logits alike. The rest is the rounding of hidden states, which each does in
    another order."""
    from transformers import AutoModelForCausalLM

    from slime.engine_client.client import Completion
    from slime_sglang.engine.driver.client import SGLangClient
    from slime_testing.engines import as_exported, running_engine
    from slime_testing.publishing import publish

    exported = as_exported(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), folder)
    prompts = [[5, 6, 7, 9, number] for number in range(20, 36)]

    async def ask(client: SGLangClient) -> list[Completion]:
        sampling = {"max_new_tokens": 48, "ignore_eos": True}
        try:
            return await asyncio.gather(*(client.generate(prompt, sampling) for prompt in prompts))
        finally:
            await client.close()

    gaps = {}
    for fp32 in (False, True):
        fields = {"dtype": "bfloat16", "enable_fp32_lm_head": fp32}
        with running_engine(folder, tmp_path / f"{fp32}.log", **fields) as engine:
            publish(iter(exported.items()), [engine.endpoint], 1, 1 << 20)
            completions = asyncio.run(ask(SGLangClient(engine.endpoint)))
        sequences = [[*prompt, *each.tokens] for prompt, each in zip(prompts, completions, strict=True)]
        [trained] = run_ranks(logprobs_of, 1, folder, fp32, sequences)
        apart = [
            scores[-len(each.tokens) :] - torch.tensor(each.logprobs)
            for scores, each in zip(trained, completions, strict=True)
        ]
        gaps[fp32] = float(torch.cat(apart).abs().mean())
    assert gaps[True] < 0.97 * gaps[False]
