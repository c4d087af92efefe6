"""SGLang's own model of the family, built without a GPU: it serves sparse attention on GPUs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime.architecture_dsa import choosing_layers
from slime.testing.ranks import Rank, run_ranks

HERE = Path(__file__).parent
TINY = HERE.parent / "slime_plugin_glm5/assets/glm5-tiny/config.json"
FILES = {"glm5-tiny": TINY, **{name: HERE / f"hub/{name}.json" for name in ("GLM-5.1", "GLM-5.2")}}


@pytest.mark.slow
def test_the_engine_takes_the_config_and_shares_indices_as_we_do(tmp_path: Path) -> None:
    configs = {name: json.loads(path.read_text()) for name, path in FILES.items()}
    for name, hf in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(hf))
    [found] = run_ranks(engine_models, 1, {name: tmp_path / name for name in configs}, tmp_path / "ordinary")
    for name, hf in configs.items():
        kind, choosing = found[name]
        assert [kind] == hf["architectures"]
        assert choosing == list(choosing_layers(hf))


def engine_models(rank: Rank, folders: dict[str, Path], ordinary: Path) -> dict[str, tuple[str, list[int]]]:
    """Class of each folder's model, and its layers that choose keys, counted from 0. Runs in a rank of its own."""
    from slime import torchvision_ops

    torchvision_ops.ensure()
    _initialize(rank, ordinary)
    models = {name: _build(folder) for name, folder in folders.items()}
    return {
        name: (type(model).__name__, [layer.layer_id for layer in model.model.layers if not layer.self_attn.skip_topk])
        for name, model in models.items()
    }


def _initialize(rank: Rank, ordinary: Path) -> None:
    """What SGLang's models read when they are built.

    Without a GPU it refuses arguments for sparse attention before it reads the model's config, so these are an ordinary
    model's. The device is the one that the models are made for: on "cpu" they would be others.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
    from transformers import Qwen3Config

    Qwen3Config(architectures=["Qwen3ForCausalLM"]).save_pretrained(ordinary)
    args = ServerArgs(model_path=str(ordinary), device="cpu", attention_backend="torch_native", dtype="bfloat16")
    args.device = "cuda"
    set_global_server_args_for_scheduler(args)
    where = {"distributed_init_method": f"tcp://{rank.master_addr}:{rank.master_port}", "local_rank": 0}
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
