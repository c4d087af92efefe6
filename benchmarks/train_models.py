"""The models that `train.py` trains, at the sizes that fit its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

from slime.config.hf import read_hf_config

DATA = ["reward=arithmetic", "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl", "run.num_steps=9"]
CUT = [
    *("recipe=none", "model.init=random", "eval.path=null", "cluster.device_memory_mb=null"),
    *("rollout.max_prompt_tokens=32", "rollout.sampling.max_response_tokens=1024"),
    *("train.checkpoint.interval=null", "train.checkpoint.export_hf=false"),
]
# Published sizes: the folder of their config, a tokenizer, and the layers that fit one, two and four H200s.
EXPERTS = {
    "glm4.7-flash": ("GLM-4.7-Flash", "glm4-moe-lite-tiny", {1: 6, 2: 12, 4: 24}),
    "glm4.5-air": ("GLM-4.5-Air", "glm4-moe-tiny", {1: 3, 2: 5, 4: 12}),
}
SPARSE = "glm5.2"
EXPERTS_A_GPU = 32
NINE = {1: ["+model=glm4-9b-trial", "model.num_layers=12"], 2: ["+model=glm4-9b-trial"]}
TINY = {
    "glm4-9b": "glm4-tiny",
    "glm4.7-flash": "glm4-moe-lite-tiny",
    "glm4.5-air": "glm4-moe-tiny",
    SPARSE: "glm5-tiny",
}


def sparse_cut(folder: str, gpus: int) -> str:
    """A folder in `folder` with the config.json of GLM-5.2's cut."""
    hf = read_hf_config("pkg://slime_plugin_glm5/assets/GLM-5.2", 3)
    layers = {"mlp_layer_types": ["dense", "sparse", "sparse"], "indexer_types": ["full", "full", "shared"]}
    layers["index_topk_pattern"] = "FFS"  # which engines read, in the place of index_topk_freq
    hf |= {"first_k_dense_replace": 1, "n_routed_experts": EXPERTS_A_GPU * gpus, **layers}
    (Path(folder) / "config.json").write_text(json.dumps(hf))
    return folder


def arguments_of(model: str, gpus: int, folder: str) -> list[str]:
    """What composes the model at the sizes that its rows are measured at; `folder` is empty."""
    if model == SPARSE:
        tokenizer = "model.tokenizer=pkg://slime_plugin_glm5/assets/glm5-tiny"
        return [f"+model={model}", f"model.path={sparse_cut(folder, gpus)}", "model.config=null", tokenizer, *CUT]
    if model not in EXPERTS:
        return NINE[gpus]
    published, tokenizer, layers = EXPERTS[model]
    assets = "pkg://slime_plugin_glm4/assets"
    paths = [f"model.path={assets}/{published}", f"model.tokenizer={assets}/{tokenizer}"]
    return [f"+model={model}", *paths, f"model.num_layers={layers[gpus]}", *CUT]
