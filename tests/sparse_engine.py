"""What SGLang makes of a config.json with sparse attention, told without a GPU: it serves that on GPUs alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import slime_megatron.sparse_attention as dsa
from slime.models.config_reader import ConfigReader
from slime_testing.ranks import Rank, run_ranks


class Built(NamedTuple):
    """Of a model: the engine's class, its layers that choose keys, counted from 0, and the order of the indexer's
    rotary embeddings."""

    architecture: str
    choosing: list[int]
    interleaved: bool


def check_the_engine_builds(configs: Mapping[str, Path], scratch: Path) -> None:
    """SGLang builds the model that each config.json is about, with the indexers that slime's has.

    Args:
        configs: config.json files by name.
        scratch: an empty folder.
    """
    read = {name: json.loads(path.read_text()) for name, path in configs.items()}
    for name, hf in read.items():
        (scratch / name).mkdir()
        (scratch / name / "config.json").write_text(json.dumps(hf))
    [found] = run_ranks(build_all, 1, {name: scratch / name for name in read}, scratch / "ordinary")
    for name, hf in read.items():
        interleaved = dsa.keywords(ConfigReader(hf))["dsa_indexer_rotary_interleaved"]
        assert found[name] == Built(hf["architectures"][0], list(dsa.choosing_layers(hf)), interleaved), name


def build_all(rank: Rank, folders: Mapping[str, Path], ordinary: Path) -> dict[str, Built]:
    """Runs in a rank of its own."""
    _initialize(rank, ordinary)
    return {name: _describe(_build(folder)) for name, folder in folders.items()}


def _initialize(rank: Rank, ordinary: Path) -> None:
    """What SGLang's models read when they are built.

    Without a GPU it refuses arguments for sparse attention before it reads the model's config, so these are an ordinary
    model's. The device is the one that the models are made for: on "cpu" they would be others.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
    from transformers import LlamaConfig

    LlamaConfig(architectures=["LlamaForCausalLM"]).save_pretrained(ordinary)
    args = ServerArgs(model_path=str(ordinary), device="cpu", attention_backend="torch_native", dtype="bfloat16")
    args.device = "cuda"
    set_global_server_args_for_scheduler(args)
    where = {"distributed_init_method": f"file://{rank.master_addr}", "local_rank": 0}
    parallel_state.init_distributed_environment(backend="gloo", world_size=1, rank=0, **where)
    parallel_state.initialize_model_parallel()
    initialize_dp_attention(args, args.get_model_config())


def _build(folder: Path) -> Any:
    """The model of a folder's config.json with all its layers, on the meta device: it takes no memory."""
    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader.utils import get_model_architecture, set_default_torch_dtype

    config = ModelConfig(str(folder), dtype="bfloat16")
    kind, _ = get_model_architecture(config)
    with set_default_torch_dtype(config.dtype), torch.device("meta"):
        return kind(config=config.hf_config)


def _describe(model: Any) -> Built:
    attentions = [layer.self_attn for layer in model.model.layers]
    choosing = [layer for layer, attention in enumerate(attentions) if not attention.skip_topk]
    interleaved = not attentions[0].indexer.rotary_emb.is_neox_style
    return Built(type(model).__name__, choosing, interleaved)
