"""Every field of Megatron-core's that a run may set, and that is said to change something, changes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.config.megatron_fields import ACCEPTED
from slime.errors import SlimeError
from slime.layout import read_grid, split_layers
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

ROOT = Path(__file__).parents[4]
MODELS = {"dense": "glm4/tests/configs/dense", "moe": "glm4/tests/configs/moe"}
MODELS |= {"mla": "glm4/tests/configs/lite", "dsa": "glm5/tests/configs/dsa"}
TP, PP, CP, EP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "expert_model"))
VPP, ETP = "virtual_pipeline_model_parallel_size", "expert_tensor_parallel_size"
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
BALANCED = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.1}


@dataclass(frozen=True)
class Shown:
    """One value of a field that makes a difference beside other settings.

    Attributes:
        what: that differs: "weights" after three steps, "saved" bytes for the backward pass, or "modules" of the model.
    """

    value: Any
    what: str = "weights"
    model: str = "dense"
    beside: Mapping[str, Any] = field(default_factory=dict)


STEPS: Mapping[str, Shown] = {
    "train.megatron.bf16": Shown(True, "modules"),
    "train.megatron.recompute_granularity": Shown("selective", "saved"),
    "train.megatron.recompute_method": Shown("block", "saved", beside=FULL),
    "train.megatron.recompute_num_layers": Shown(2, "saved", beside=FULL),
    "train.megatron.recompute_modules": Shown(["mlp"], "saved", beside={"recompute_granularity": "selective"}),
    "train.megatron.moe_grouped_gemm": Shown(True, "modules", "moe", {"bf16": True}),
    "train.megatron.moe_router_load_balancing_type": Shown("none", model="moe", beside=BALANCED),
    "train.megatron.moe_aux_loss_coeff": Shown(0.2, model="moe", beside=BALANCED),
    "train.megatron.moe_z_loss_coeff": Shown(0.1, model="moe"),
    "train.megatron.moe_router_bias_update_rate": Shown(0.01, model="moe"),
    "train.megatron.dsa_indexer_loss_coeff": Shown(0.1, model="dsa"),
    "train.megatron.init_method_std": Shown(0.5, beside={"model.init": "random"}),
    "train.optimizer.lr": Shown(2e-3),
    "train.optimizer.min_lr": Shown(5e-4, beside={"train.lr_decay": "linear"}),
    "train.optimizer.weight_decay": Shown(0.1),
    "train.optimizer.adam_beta1": Shown(0.5),
    "train.optimizer.adam_beta2": Shown(0.5),
    "train.optimizer.adam_eps": Shown(1e-2),
    "train.optimizer.clip_grad": Shown(1e-3),
}
PARTS = {
    "core_attn": "dense",
    "mlp": "dense",
    "moe": "moe",
    "shared_experts": "moe",
    "mla_up_proj": "mla",
}
LAYOUTS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    TP: (2, {}),
    PP: (2, {}),
    VPP: (2, {PP: 2}),
    CP: (2, {}),
    EP: (2, {}),
    ETP: (1, {TP: 2}),
    "num_layers_in_first_pipeline_stage": (3, {PP: 2}),
    "num_layers_in_last_pipeline_stage": (3, {PP: 2}),
    "pipeline_model_parallel_layout": ("Et*7|tL", {PP: 2}),
    "account_for_embedding_in_pipeline_split": (True, {PP: 3}),
    "account_for_loss_in_pipeline_split": (True, {PP: 3}),
}
"""Field -> a value that makes other groups or stages of 8 layers, beside others. Trained in `test_parity.py`."""
ON_GPU = {
    "train.optimizer.optimizer_cpu_offload": "plugins/megatron/tests/train/test_on_gpu.py",
    "train.megatron.disable_bf16_reduced_precision_matmul": "plugins/megatron/tests/train/test_fields.py",
}
"""Field -> where it is shown."""


def test_every_field_is_shown_to_change_something_or_says_why_it_changes_nothing() -> None:
    fields = {f"{section}.{name}": x for section, named in ACCEPTED.items() for name, x in named.items()}
    shown = [*STEPS, *(f"train.megatron.{name}" for name in LAYOUTS), *ON_GPU]
    assert sorted(shown) == sorted(name for name, accepted in fields.items() if accepted.numbers)
    assert {
        name for name, place in ON_GPU.items() if name.rpartition(".")[2] not in (ROOT / place).read_text()
    } == set()
    assert set(PARTS) == set(ACCEPTED["train.megatron"]["recompute_modules"].only)


@pytest.mark.parametrize("name", LAYOUTS)
def test_sizes_change_groups_and_stages(name: str) -> None:
    value, beside = LAYOUTS[name]
    before, after = (layout_of(settings) for settings in (beside, {**beside, name: value}))
    assert before != after


def layout_of(megatron: Mapping[str, Any]) -> Any:
    """As the plan shows it, or why there is none."""
    grid = read_grid(24, megatron)
    try:
        return grid, split_layers(8, grid, megatron)
    except SlimeError as problem:
        return str(problem)


def test_reduced_precision_sums_can_be_forbidden() -> None:
    from megatron.core.transformer.transformer_config import TransformerConfig

    settings = torch.backends.cuda.matmul
    before = settings.allow_bf16_reduced_precision_reduction
    try:
        TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True)
        assert settings.allow_bf16_reduced_precision_reduction is before
        only = {"disable_bf16_reduced_precision_matmul": True}
        TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True, **only)
        assert settings.allow_bf16_reduced_precision_reduction is False
    finally:
        settings.allow_bf16_reduced_precision_reduction = before


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    made = {model: tmp_path_factory.mktemp(model) for model in MODELS}
    for model, folder in made.items():
        write_checkpoint(json.loads((ROOT / f"plugins/models/{MODELS[model]}.json").read_text()), folder)
    return made


@pytest.mark.slow
def test_fields_change_what_they_say(folders: Mapping[str, Path]) -> None:
    [pairs] = run_ranks(with_and_without, 1, folders, timeout_s=200)
    same = [name for name, (before, after) in pairs.items() if before[STEPS[name].what] == after[STEPS[name].what]]
    assert pairs.keys() == STEPS.keys()
    assert same == []


@pytest.mark.slow
def test_recomputing_a_part_saves_memory_and_changes_no_weight(folders: Mapping[str, Path]) -> None:
    [pairs] = run_ranks(with_and_without_parts, 1, folders, timeout_s=200)
    for part, (before, after) in pairs.items():
        assert after["saved"] < before["saved"], part
        assert after["weights"] == before["weights"], part


def with_and_without(rank: Rank, folders: Mapping[str, Path]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    once = cache(partial(stepped, rank, folders))
    for name, shown in STEPS.items():
        beside = {key if "." in key else f"train.megatron.{key}": value for key, value in shown.beside.items()}
        beside.pop(name, None)
        without = beside | (
            {name: shown.beside[name.rpartition(".")[2]]} if name.rpartition(".")[2] in shown.beside else {}
        )
        found[name] = [once(shown.model, json.dumps(changes)) for changes in (without, {**beside, name: shown.value})]
    return found


def with_and_without_parts(rank: Rank, folders: Mapping[str, Path]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    once = cache(partial(stepped, rank, folders))
    for part, model in PARTS.items():
        chosen = {"train.megatron.recompute_granularity": "selective", "train.megatron.recompute_modules": [part]}
        found[part] = [once(model, json.dumps(changes)) for changes in ({}, chosen)]
    return found


def stepped(rank: Rank, folders: Mapping[str, Path], model: str, changes: str) -> dict[str, Any]:
    """Three reinforced steps with changes of the config, as JSON: many fields are compared with the same ones."""
    return steps(rank, folders[model], json.loads(changes))


def steps(rank: Rank, folder: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Three reinforced steps: digest of the weights after them, bytes saved by the last, kinds and types of modules."""
    from slime.config.keys import value_of
    from slime.config.schema import Init, LossMean, LrDecay, SlimeConfig
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    hf = json.loads((folder / "config.json").read_text())
    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = hf["model_type"], str(folder), 3
    cfg.train.optimizer = {"lr": 1e-3}
    enums = {"model.init": Init, "train.lr_decay": LrDecay}
    for key, value in changes.items():
        section, _, name = key.rpartition(".")
        holder = value_of(cfg, section)
        value = enums[key][value] if key in enums else value
        holder.__setitem__(name, value) if isinstance(holder, dict) else setattr(holder, name, value)
    trainer = Trainer(cfg, *rank.again())
    trainer.init_weights()
    samples = recorded_samples(4, hf["vocab_size"])
    batches = pack(samples, num_dp=1, align=1, max_tokens=200, loss_mean=LossMean.token)
    for step in range(3):
        saved = Saved()
        with torch.autograd.graph.saved_tensors_hooks(saved.add, saved.take):
            trainer.train(batches, step, "rl")
    weights = {name: tensor.float().numpy().tobytes() for name, tensor in trainer.export()}
    modules = [
        (type(x).__name__, str(next(x.parameters(), torch.zeros(1)).dtype)) for x in trainer.model.modules[0].modules()
    ]
    torch.distributed.destroy_process_group()
    return {"weights": weights, "saved": saved.num_bytes, "modules": modules}


class Saved:
    """What a forward pass keeps for the backward pass until that begins; what is computed again does not count."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._storages: dict[int, torch.UntypedStorage] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        if torch._C._current_graph_task_id() == -1:
            self._storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """At the first one: parts whose output is discarded have left nothing of it by then."""
        self.num_bytes = self.num_bytes or sum(storage.nbytes() for storage in self._storages.values())
        return tensor
