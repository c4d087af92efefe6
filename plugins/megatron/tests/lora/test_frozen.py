"""What LoRA leaves as it is costs no gradient, no optimizer state and no product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.config.keys import default_config
from slime_testing.contract import Contract
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

CONFIGS = Path(__file__).parents[3] / "models"
MODELS = ["glm4/tests/configs/dense.json", "glm4/tests/configs/moe.json", "glm5/tests/configs/dsa.json"]
RANK = 2


def observe(rank: Rank, family: str, folder: Path) -> dict[str, Any]:
    """One step with a penalty on the divergence from the reference; products that sum over tokens are those of
    gradients."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    cfg: Any = default_config()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = family, str(folder), 2
    cfg.train.optimizer, cfg.train.lora.rank, cfg.algo.kl_coef = {"lr": 1e-2}, RANK, 0.1
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    samples = recorded_samples(8, trainer.hf["vocab_size"])
    batches = pack(samples, num_dp=1, align=1, max_tokens=512, loss_mean=cfg.algo.loss_mean)
    named = [named for module in trainer.model.modules for named in module.named_parameters()]
    # Sparse attention multiplies other things by this matrix, with what the adapter adds.
    absorbed = "linear_kv_up_proj" if hasattr(trainer.model.config, "dsa_indexer_topk") else "nothing"
    frozen = {tuple(x.shape) for name, x in named if not x.requires_grad and absorbed not in name}
    shapes = {shape for shape in frozen if len(shape) == 2}
    lengths = {len(micro.tokens) for of_rank in batches[0].micro_batches for micro in of_rank}
    made: list[tuple[tuple[int, ...], int]] = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
                made.append((tuple(out.shape), args[-2].size(1)))
            return out

    before = {name: tensor.clone() for name, tensor in trainer.export()}
    with Products():
        values = trainer.train(batches, 0, "rl")
    learning = {
        name: x.numel() for module in trainer.model.modules for name, x in module.named_parameters() if x.requires_grad
    }
    return {
        "gradients of frozen matrices": [
            shape for shape, inner in made if inner in lengths and (shape in shapes or shape[::-1] in shapes)
        ],
        "products": len(made),
        "learning": learning,
        "gradients": sum(x.grad_data.numel() for chunk in trainer.model.chunks for x in chunk.buffers),
        "experts' gradients": [x for chunk in trainer.model.chunks for x in chunk.expert_parallel_buffers],
        "state": sum(
            value.numel()
            for adam in trainer.optimizer.adams()
            for state in adam.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ),
        "reference": [*trainer.reference[0]],
        "kl": values["kl"],
        "moved": [name for name, tensor in trainer.export() if not torch.equal(tensor, before[name])],
        "own": [name for name, held in trainer.inventory.local.items() if held.tensor.requires_grad],
    }


@pytest.mark.slow
@pytest.mark.parametrize("config", MODELS)
def test_only_adapters_learn_and_cost(config: str) -> None:
    model = Contract(json.loads((CONFIGS / config).read_text()))
    [found] = run_ranks(observe, 1, model.family, model.folder)
    assert found["products"] > 50
    assert found["gradients of frozen matrices"] == []
    assert all(".lora_" in name for name in found["learning"])
    count = sum(found["learning"].values())
    assert count <= found["gradients"] <= count + 2048, "the buffer is padded"
    assert found["experts' gradients"] == []
    assert found["state"] <= 2 * found["gradients"] + len(found["learning"])
    assert all(".lora_" in name or "expert_bias" in name or "tokens_per_expert" in name for name in found["reference"])
    assert found["own"] == []
    assert found["kl"] == 0.0, "at first the adapters add nothing"
    assert found["moved"], "what is published has moved"
    assert not any(".experts." in name or "norm" in name or "embed" in name for name in found["moved"])
