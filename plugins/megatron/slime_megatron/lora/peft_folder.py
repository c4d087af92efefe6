"""Adapters as a folder that PEFT loads: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from slime_megatron.lora.options import LoraConfig
from slime_megatron.train.weights.save_hf import save_tensors, write_json

_FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
"""Layers of routed experts that are parts of one parameter in transformers' classes, from its version 5 on."""

_EXPERT = re.compile(r"\.experts\.\d+\.")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write(
    tensors: Mapping[str, Tensor], folder: Path, options: LoraConfig, base: str, of_experts: Collection[str]
) -> None:
    """Raises OSError as the operating system refuses it.

    Args:
        tensors: by PEFT's names.
        base: HF folder of the model, which PEFT finds the model by.
        of_experts: names of the layers of routed experts.
    """
    save_tensors({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    layers = {name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")}
    write_json(folder / CONFIG, _config(layers, of_experts, options, base))
    (folder / WEIGHTS).chmod((folder / CONFIG).stat().st_mode)  # safetensors lets nobody but the owner read it


def _config(layers: Collection[str], of_experts: Collection[str], options: LoraConfig, base: str) -> dict[str, Any]:
    """Where experts have layers of the same name, PEFT takes a name among `target_modules` for theirs
    (`peft.utils.transformers_weight_conversion`), but leaves one among `target_parameters` alone.

    Those of experts it puts together as transformers does the weights: an adapter of two layers has the ranks of both,
    and so twice the alpha."""
    tails = {tuple(layer.split(".")[-2:]) for layer in layers if not _EXPERT.search(layer)}
    parts = Counter(_FUSED.get(name, name) for name in {_name(layer) for layer in layers if _EXPERT.search(layer)})
    ranks = {f"experts.{name}": count * (options.expert_rank or 0) for name, count in parts.items()}
    return {
        "alpha_pattern": {f"experts.{name}": count * options.alpha for name, count in parts.items()},
        "base_model_name_or_path": base,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": options.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": options.rank,
        "rank_pattern": ranks,
        "target_modules": sorted({name for _, name in tails if name not in of_experts}),
        "target_parameters": sorted(
            [*ranks, *(f"{owner}.{name}.weight" for owner, name in tails if name in of_experts)]
        ),
        "task_type": "CAUSAL_LM",
    }


def _name(layer: str) -> str:
    return layer.rpartition(".")[2]
