"""LoRA computes what PEFT computes on transformers' class, and the same in every parallel layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.config.keys import default_config
from slime.config.schema import LossMean, SlimeConfig
from slime_megatron.lora.options import Published
from slime_testing.contract import CP, EP, PP, TP, UNEVEN, Contract
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import NUM_SAMPLES, NUM_STEPS, gather_shards

CONFIGS = Path(__file__).parents[3] / "models"
MODELS = {
    "queries, keys and values in one layer, biases": "qwen2/tests/configs/untied.json",
    "fused gate and up, norms behind": "glm4/tests/configs/dense.json",
    "latent attention, shared experts": "glm4/tests/configs/lite.json",
    "sparse attention": "glm5/tests/configs/dsa.json",
    "routed experts alone": "qwen3/tests/configs/moe.json",
    "tied embeddings": "llama/tests/configs/tied.json",
}
RANK, ALPHA, EXPERT_RANK = 4, 6.0, 2
BESIDE = {"publish": Published.adapters}
ON_EXPERTS, IN_ONE_CALL = {"expert_rank": EXPERT_RANK}, {"moe_grouped_gemm": True}
COMPARED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, {}) for name in MODELS},
    "beside": ("fused gate and up, norms behind", BESIDE),
    "on routed experts alone": ("routed experts alone", ON_EXPERTS),
    "on experts behind latent attention": ("latent attention, shared experts", ON_EXPERTS),
    # At 1e-2 one of the choices of keys or experts, which are no sums, falls another way in the third step.
    "on experts behind sparse attention": ("sparse attention", {**ON_EXPERTS, "lr": 5e-3}),
    "on experts, in one call": ("latent attention, shared experts", {**ON_EXPERTS, **IN_ONE_CALL}),
}
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def activations_again(module: str) -> dict[str, Any]:
    return {"recompute_granularity": "selective", "recompute_modules": [module]}


LAYOUTS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    2: {
        "dp2": {},
        "dp2-recompute": RECOMPUTE,
        "tp2": {TP: 2},
        "pp2": UNEVEN,
        "cp2": {CP: 2},
        "tp2-beside": {TP: 2, **BESIDE},
    },
    4: {
        "tp2-pp2": {TP: 2, PP: 2},
        "tp2-cp2-recompute": {TP: 2, CP: 2, **RECOMPUTE},
        "pp2-vpp2-dp2": {PP: 2, "virtual_pipeline_model_parallel_size": 2},
        "tp2-cp2-recompute-beside": {TP: 2, CP: 2, **RECOMPUTE, **BESIDE},
    },
}
WITH_EXPERTS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    2: {"ep2": {EP: 2}, "tp2-ep2": {TP: 2, EP: 2}},
    4: {"tp2-pp2-ep2": {TP: 2, PP: 2, EP: 2}},
}
OF_EXPERTS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    2: {
        "dp2": {},
        "pp2": UNEVEN,
        "cp2-recompute": {CP: 2, **RECOMPUTE},
        **WITH_EXPERTS[2],
        "ep2, in one call": {EP: 2, **IN_ONE_CALL},
        "tp2-ep2, in one call, recompute": {TP: 2, EP: 2, **IN_ONE_CALL, **RECOMPUTE},
        "dp2, in one call, activations again": {**IN_ONE_CALL, **activations_again("moe_act")},
        "ep2, experts again": {EP: 2, **activations_again("moe")},
    },
    4: {
        **WITH_EXPERTS[4],
        "dp2-ep2": {EP: 2},
        "pp2-vpp2-ep2": {PP: 2, "virtual_pipeline_model_parallel_size": 2, EP: 2},
        "tp2-pp2-ep2, in one call": {TP: 2, PP: 2, EP: 2, **IN_ONE_CALL},
    },
}
METRICS, GRADIENTS, WEIGHTS = 2e-6, 2e-5, 2e-5
"""Largest differences between layouts, those of the contract of model plugins (`slime_testing.training`)."""


@dataclass
class Trained:
    """By step, on rank 0: gradients and values of the adapters before it, by PEFT's names, and metrics; the merged
    weights before the first and after the last step."""

    gradients: list[dict[str, Any]]
    adapters: list[dict[str, Any]]
    history: list[dict[str, float]]
    first: dict[str, torch.Tensor]
    merged: dict[str, torch.Tensor]


def config(family: str, folder: Path, layout: Mapping[str, Any]) -> SlimeConfig:
    """Of a layout, and what engines get."""
    cfg: Any = default_config()
    layout = dict(layout)
    cfg.train.lora.publish = layout.pop("publish", Published.merged)
    cfg.train.lora.expert_rank, lr = layout.pop("expert_rank", None), layout.pop("lr", 1e-2)
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, str(folder), NUM_STEPS
    cfg.train.megatron, cfg.train.logprob_chunk_tokens = layout, 32
    cfg.sft.lr, cfg.sft.num_steps = lr, NUM_STEPS
    cfg.train.optimizer = {"lr": lr, "adam_eps": 1e-4, "weight_decay": 0.0}
    cfg.train.lora.rank, cfg.train.lora.alpha = RANK, ALPHA
    return cfg


def train_layouts(rank: Rank, family: str, folder: Path, layouts: Mapping[str, Any], saved: Path | None) -> Any:
    found = {}
    for name, layout in layouts.items():
        found[name] = train(rank, config(family, folder, layout), saved)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


def train(rank: Rank, cfg: SlimeConfig, saved: Path | None) -> Trained:
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    first = {name: tensor.clone() for name, tensor in trainer.export()}
    gradients: list[dict[str, Any]] = []
    record_gradients(trainer, gradients)
    batches = pack(
        recorded_samples(NUM_SAMPLES, trainer.hf["vocab_size"]),
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=512,
        loss_mean=LossMean.token,
        micro_batch_multiple=2 * trainer.micro_batch_multiple,
    )
    shares = [batch.share(trainer.data_parallel_rank) for batch in batches]
    adapters, history = [], []
    for step in range(NUM_STEPS):
        adapters.append(exported(trainer))
        if saved and step == NUM_STEPS - 1:
            trainer.save_adapters(saved)
        values = trainer.train(shares, step, "sft")
        history.append({name: values[name] for name in ("loss", "grad_norm")})
    return Trained(gradients, adapters, history, first, {name: x.clone() for name, x in trainer.export()})


def exported(trainer: Any) -> dict[str, Any]:
    from slime_megatron.train.weights.export import export_hf

    tensors = export_hf(trainer.model.modules, trainer.model.adapters.mapping(trainer.mapping))
    return {name: tensor.numpy().copy() for name, tensor in tensors}


def record_gradients(trainer: Any, found: list[dict[str, Any]]) -> None:
    """Put gradients in the place of the adapters and export these, just before the optimizer's turn."""
    finalize = trainer.model.config.finalize_model_grads_func
    learning = [x for module in trainer.model.modules for x in module.parameters() if x.requires_grad]

    def finalize_and_record(chunks: Any, *args: Any, **kwargs: Any) -> None:
        finalize(chunks, *args, **kwargs)
        gather_shards(chunks)
        before = [parameter.detach().clone() for parameter in learning]
        with torch.no_grad():
            for parameter in learning:
                parameter.copy_(parameter.main_grad)
            found.append(exported(trainer))
            for parameter, value in zip(learning, before, strict=True):
                parameter.copy_(value)

    trainer.model.config.finalize_model_grads_func = finalize_and_record


def of_config(file: str) -> Contract:
    return Contract(json.loads((CONFIGS / file).read_text()))


def one_rank(model: Contract, saved: Path | None = None, layout: Mapping[str, Any] | None = None) -> Trained:
    [found] = run_ranks(train_layouts, 1, model.family, model.folder, {"one rank": layout or {}}, saved)
    return found["one rank"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_logits_and_gradients_are_those_of_peft(name: str, tmp_path: Path) -> None:
    """At adapters that two steps have moved: fp32, sums of some hundred terms in another order."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    name, options = COMPARED[name]
    model = of_config(MODELS[name])
    ours = one_rank(model, tmp_path / "adapter", options)
    base = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32)
    theirs: Any = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    loss = loss_of(theirs, model.hf["vocab_size"])
    loss.backward()
    assert float(loss.detach()) == pytest.approx(ours.history[-1]["loss"], abs=1e-6)
    learning = {key: value for key, value in theirs.named_parameters() if value.requires_grad}
    whole = {key.replace(".default.", "."): value.grad.numpy() for key, value in learning.items()}
    gradients = {key: value for name, fused in whole.items() for key, value in of_single_experts(name, fused)}
    assert gradients.keys() == ours.gradients[-1].keys()
    for key, wanted in gradients.items():
        assert np.abs(wanted).max() > 0, key
        assert np.abs(ours.gradients[-1][key] - wanted).max() <= 1e-5 * max(np.abs(wanted).max(), 1e-3), key


def of_single_experts(name: str, fused: Any) -> Iterator[tuple[str, Any]]:
    """By their names in the checkpoint, those of an adapter of all experts: gate and up have one, with the ranks of
    both; A is [experts * ranks, input] and B [output, ranks * experts] (`peft.tuners.lora.layer.ParamWrapper`)."""
    before, of_experts, part = name.rpartition(".experts.")
    if not of_experts:
        yield name, fused
        return
    names = ["gate_proj", "up_proj"] if part.startswith("base_layer.") else ["down_proj"]
    side, count = part.removeprefix("base_layer."), len(names)
    for index, layer in enumerate(names):
        if side.startswith("lora_A"):
            of_each = fused.reshape(-1, count, EXPERT_RANK, fused.shape[1])[:, index]
        else:
            of_each = fused.reshape(count, len(fused) // count, count, EXPERT_RANK, -1)[index, :, index].transpose(
                2, 0, 1
            )
        for expert, value in enumerate(of_each):
            yield f"{before}.experts.{expert}.{layer}.{side}", value


def loss_of(model: Any, vocab_size: int) -> torch.Tensor:
    """Mean of the loss tokens' negative log-probs, of the samples that `train` packs."""
    losses = []
    for sample in recorded_samples(NUM_SAMPLES, vocab_size):
        tokens = torch.tensor(np.asarray(sample.tokens))
        logprobs = model(tokens[None]).logits[0].log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        mask = torch.tensor(sample.loss_mask)
        losses.append(-logprobs[-len(mask) :][mask > 0])
    return torch.cat(losses).mean()


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", LAYOUTS)
@pytest.mark.parametrize("name", ["fused gate and up, norms behind", "latent attention, shared experts"])
def test_layouts_equal_one_rank(name: str, num_ranks: int) -> None:
    model = of_config(MODELS[name])
    has_experts = "n_routed_experts" in model.hf
    layouts = {**LAYOUTS[num_ranks], **(WITH_EXPERTS[num_ranks] if has_experts else {})}
    require_equal(model, num_ranks, layouts, one_rank(model))


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", OF_EXPERTS)
def test_layouts_equal_one_rank_with_adapters_of_experts(num_ranks: int) -> None:
    model = of_config(MODELS["latent attention, shared experts"])
    layouts = {name: {**layout, **ON_EXPERTS} for name, layout in OF_EXPERTS[num_ranks].items()}
    require_equal(model, num_ranks, layouts, one_rank(model, None, ON_EXPERTS))


def require_equal(model: Contract, num_ranks: int, layouts: Mapping[str, Mapping[str, Any]], wanted: Trained) -> None:
    results = run_ranks(train_layouts, num_ranks, model.family, model.folder, layouts, None, timeout_s=200)
    for layout in layouts:
        found: Trained = results[0][layout]
        for step in range(NUM_STEPS):
            for metric, value in wanted.history[step].items():
                assert found.history[step][metric] == pytest.approx(value, rel=METRICS, abs=METRICS), (layout, metric)
            compare(found.gradients[step], wanted.gradients[step], GRADIENTS, f"{layout} step {step}")
        assert {key: x.tobytes() for key, x in found.adapters[0].items()} == {
            key: x.tobytes() for key, x in wanted.adapters[0].items()
        }, "first values do not depend on the layout"
        assert all(torch.equal(x, wanted.first[key]) for key, x in found.first.items())
        compare(*({name: x.numpy() for name, x in each.merged.items()} for each in (found, wanted)), WEIGHTS, layout)


def compare(found: Mapping[str, Any], wanted: Mapping[str, Any], tolerance: float, where: str) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        largest = np.abs(value).max()
        assert np.abs(found[key] - value).max() <= tolerance * largest, f"{where}: {key}"
