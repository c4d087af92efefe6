"""A checkpoint holds the adapters alone, continues bit for bit, and finds the other weights where they came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from slime.config.keys import default_config
from slime_testing.contract import Contract
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples

CONFIG = Path(__file__).parents[3] / "models/glm4/tests/configs/moe.json"
TP2_EP2 = {"tensor_model_parallel_size": 2, "expert_model_parallel_size": 2}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> Contract:
    return Contract(json.loads(CONFIG.read_text()))


def start(rank: Rank, folder: Path, *, lora: bool = True, weights: Path | None = None, **megatron: Any) -> Any:
    from slime_megatron.train.trainer import Trainer

    cfg: Any = default_config()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = "glm4_moe", str(folder), 4
    cfg.model.weights = weights and str(weights)
    cfg.train.optimizer, cfg.algo.kl_coef, cfg.train.megatron = {"lr": 1e-2}, 0.1, dict(megatron)
    cfg.train.lora.rank, cfg.train.lora.expert_rank = (4, 2) if lora else (None, None)
    return Trainer(cfg, *rank)


def again(rank: Rank) -> Rank:
    """For another trainer in this process."""
    rank = rank.again()
    torch.distributed.destroy_process_group()
    return rank


def step(trainer: Any, number: int) -> dict[str, float]:
    from slime.train.packing import pack

    samples = recorded_samples(8, trainer.hf["vocab_size"], seed=number)
    batches = pack(samples, num_dp=1, align=trainer.packing_align, max_tokens=512, loss_mean=trainer.cfg.algo.loss_mean)
    values = trainer.train(batches, number, "rl")
    return {name: value for name, value in values.items() if not name.startswith("seconds/")}


def published(trainer: Any) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in trainer.export()}


def continued(rank: Rank, folder: Path, saved: Path) -> dict[str, Any]:
    trainer = start(rank, folder)
    trainer.init_weights()
    trainer.snapshot_reference()
    found: dict[str, Any] = {"reference": 0, "before": published(trainer)}
    step(trainer, 0), step(trainer, 1)
    trainer.save(saved)
    found["saved"] = published(trainer)
    found["went on"] = step(trainer, 2), published(trainer)
    trainer = start(again(rank), folder)
    trainer.load(saved)
    found["loaded"] = published(trainer)
    found["resumed"] = step(trainer, 2), published(trainer)
    return found


def loaded(rank: Rank, folder: Path, saved: Path, megatron: dict[str, Any]) -> dict[str, bytes]:
    trainer = start(rank, folder, **TP2_EP2, **megatron)
    trainer.load(saved)
    return published(trainer)


def of_weights(rank: Rank, folder: Path, scratch: Path, saved: Path) -> dict[str, Any]:
    """Adapters over the weights of a whole checkpoint, which are not those of the HF folder; as `slime eval` takes
    them up, and without adapters."""
    from slime.errors import SlimeError

    trainer = start(rank, folder, lora=False)
    trainer.init_weights()
    trainer.snapshot_reference()
    step(trainer, 0)
    (whole := scratch / "whole").mkdir()
    trainer.save(whole)
    found: dict[str, Any] = {"whole": published(trainer)}
    trainer = start(again(rank), folder, weights=whole)
    trainer.init_weights()
    found["begun"] = published(trainer)
    trainer.snapshot_reference()
    step(trainer, 1)
    (adapters := scratch / "adapters").mkdir()
    trainer.save(adapters)
    found["trained"] = published(trainer)
    trainer = start(again(rank), folder, weights=adapters)
    trainer.init_weights()
    found["taken up"] = published(trainer)
    trainer = start(again(rank), folder, lora=False, weights=saved)
    with pytest.raises(SlimeError) as refused:
        trainer.init_weights()
    found["refused"] = str(refused.value)
    return found


def test_a_resumed_run_goes_on_bit_for_bit(model: Contract, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    (saved := tmp_path / "saved").mkdir()
    [found] = run_ranks(continued, 1, model.folder, saved, timeout_s=120)
    assert found["before"] != found["saved"]
    assert found["loaded"] == found["saved"]
    assert found["resumed"] == found["went on"]
    names = [name for name in FileSystemReader(saved).read_metadata().state_dict_metadata if "rng" not in name]
    assert [name for name in names if ".lora_" not in name] == []
    assert any(name.startswith("reference.") for name in names)
    assert any(".experts." in name for name in names)
    for megatron in ({}, {"moe_grouped_gemm": True}):  # experts that are one parameter have the adapters of single ones
        [divided, _] = run_ranks(loaded, 2, model.folder, saved, megatron, timeout_s=120)
        assert divided.keys() == found["saved"].keys()
        for name, value in divided.items():
            assert torch.allclose(
                *(torch.frombuffer(bytearray(x), dtype=torch.float32) for x in (value, found["saved"][name])), atol=1e-7
            )
    others = run_ranks(of_weights, 1, model.folder, tmp_path, saved, timeout_s=120)[0]
    assert others["whole"] == others["begun"] != others["trained"]
    assert others["taken up"] == others["trained"]
    assert others["refused"].startswith(f"model.weights={saved}: holds adapters and no model")


def taught(rank: Rank, folder: Path, teacher: Path) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
    """What the teacher's modules and the model's hold once adapters have learnt."""
    from slime_megatron.train import reference

    trainer = start(rank, folder)
    trainer.init_weights()
    trainer.snapshot_reference()
    step(trainer, 0)
    before, trainer.cfg.algo.teacher.path = published(trainer), str(teacher)
    trainer.hold_teacher()
    with reference.swapped_in(trainer.teacher, trainer.model.modules, frozen=True):
        within = published(trainer)
    return before, within, published(trainer)


def test_a_teacher_is_another_model_without_the_adapters(model: Contract, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    write_checkpoint(model.hf, teacher, seed=1)
    before, within, after = run_ranks(taught, 1, model.folder, teacher)[0]
    assert before == after
    of_file = load_file(teacher / "model.safetensors")
    assert within == {name: of_file[name].numpy().tobytes() for name in within}
    assert within.keys() == before.keys()
