"""Adam on the CPU with a critic, whose head is in fp32: load, warm start, save and resume, and torch's own steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from slime_testing.ranks import Rank, run_ranks

from .test_critic import batches_of, numbers, start, weights_of, write_other
from .tiny import write_model

CPU_ADAM = {"lr": 1e-3, "adam_eps": 1e-6, "weight_decay": 0.1, "optimizer_cpu_offload": True}
BF16 = {"bf16": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


def begun(rank: Rank, model: Path, device: str, **critic: Any) -> Any:
    """A trainer whose Adam is on the CPU, with its critic."""
    return start(rank, model, BF16, device=device, optimizer=CPU_ADAM, lr_warmup_steps=6, **critic)


def parts(trainer: Any) -> Mapping[str, tuple[Any, Any]]:
    return {"policy": (trainer.model, trainer.optimizer), "critic": (trainer.critic.model, trainer.critic.optimizer)}


def masters_off(trainer: Any) -> dict[str, float]:
    """By part, how far the masters are from the model's own parameters, which bf16 rounds."""
    off = {}
    trainer.critic.offload.onload()
    for name, (_, optimizer) in parts(trainer).items():
        [adam] = optimizer.adams()
        pairs = [(inner, parameter) for parameter, inner in adam.param_to_inner_param.items()]
        assert all(inner is not parameter and inner.device.type == "cpu" for inner, parameter in pairs)
        off[name] = max(float((inner.to(each.dtype) - each.cpu()).abs().max()) for inner, each in pairs)
    return off


def steps_of(trainer: Any) -> dict[str, set[float]]:
    """By part, what Adam counts."""
    return {
        name: {float(state["step"]) for state in optimizer.adams()[0].state.values()}
        for name, (_, optimizer) in parts(trainer).items()
    }


def lives(rank: Rank, model: Path, other: Path, folder: Path, device: str, critic: Mapping[str, Any]) -> dict[str, Any]:
    """What a run goes through: a start from weights of their own, a step, a checkpoint, another step; then the same
    from the checkpoint, in another trainer."""
    trainer = begun(rank, model, device, path=str(other), **critic)
    trainer.begin_critic("rl")
    found = {"after start": masters_off(trainer)}
    head = trainer.critic.model.modules[-1].output_layer.weight
    found["head"] = (str(head.dtype), float(head.detach().abs().max()))
    trainer.train(batches_of(trainer, 1), 1, "rl")
    found |= {"after a step": masters_off(trainer), "learnt": float(head.detach().abs().max())}
    found["counted"] = steps_of(trainer)
    trainer.save(folder)
    found["metrics"] = [numbers(trainer.train(batches_of(trainer, step), step, "rl")) for step in (2, 3)]
    trainer.critic.offload.onload()
    found["weights"] = [each.cpu() for each in weights_of(trainer)]
    torch.distributed.destroy_process_group()
    trainer = begun(rank.again(), model, device, **critic)
    trainer.load(folder)
    found |= {"after load": masters_off(trainer), "counted again": steps_of(trainer)}
    found["metrics again"] = [numbers(trainer.train(batches_of(trainer, step), step, "rl")) for step in (2, 3)]
    trainer.critic.offload.onload()
    found["weights again"] = [each.cpu() for each in weights_of(trainer)]
    return found


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("critic", "counted"),
    [({}, (2.0, 2.0)), ({"only_steps": 2}, (0.0, 2.0)), ({"offload": True}, (2.0, 2.0))],
    ids=["both learn", "the critic alone at first", "by turns"],
)
def test_a_run_with_a_critic_goes_on_from_its_checkpoint(
    critic: dict[str, Any],
    counted: tuple[float, float],
    device: str,
    model: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Also from one that comes before the policy's first step."""
    other = write_other(tmp_path_factory)
    [found] = run_ranks(lives, 1, model, other, tmp_path, device, critic, timeout_s=200)
    assert found["head"] == ("torch.float32", 0.0)
    assert found["learnt"] > 0
    for when in ("after start", "after a step", "after load"):
        assert found[when] == {"policy": 0.0, "critic": 0.0}, f"{when}: masters are not the model's"
    assert found["counted"] == found["counted again"] == {"policy": {counted[0]}, "critic": {counted[1]}}
    assert found["metrics"] == found["metrics again"]
    assert len(found["weights"]) > 60
    assert all(torch.equal(a, b) for a, b in zip(found["weights"], found["weights again"], strict=True))


def beside_torch(rank: Rank, model: Path) -> dict[str, float]:
    """Two steps of the critic, and the same with torch's AdamW in float64 by the gradients that it had: the largest
    difference of a master weight, of bf16 and of fp32 parameters."""
    trainer = begun(rank, model, "cpu", clip_grad=1e9)
    trainer.begin_critic("rl")
    optimizer = trainer.critic.optimizer
    [adam], inner = optimizer.adams(), optimizer.adams()[0].param_to_inner_param
    group_of = {each: group for group in adam.param_groups for each in group["params"]}
    wanted = {each: torch.nn.Parameter(copy.detach().double().clone()) for each, copy in inner.items()}
    torchs = {
        each: torch.optim.AdamW([own], eps=1e-6, weight_decay=group_of[each]["weight_decay"], betas=(0.9, 0.999))
        for each, own in wanted.items()
    }
    step = adam.step

    def step_both() -> None:
        for each, own in wanted.items():
            own.grad = each.decoupled_grad.double().clone()
            torchs[each].param_groups[0]["lr"] = group_of[each]["lr"]
            torchs[each].step()
        step()

    adam.step = step_both
    trainer.train(batches_of(trainer, 1), 1, "rl")
    off = {"torch.bfloat16": 0.0, "torch.float32": 0.0}
    for each, own in wanted.items():
        off[str(each.dtype)] = max(off[str(each.dtype)], float((inner[each].double() - own).abs().max()))
    return off


def test_its_steps_are_torchs(model: Path) -> None:
    [off] = run_ranks(beside_torch, 1, model)
    assert set(off) == {"torch.bfloat16", "torch.float32"}
    # Two steps in fp32 of weights of about 1, whose last place is 1.2e-7.
    assert max(off.values()) < 5e-7, off


def reward_model(rank: Rank, model: Path, folder: Path, device: str) -> tuple[Any, Any, float]:
    from slime.config.schema import AlgoConfig

    def made(rank: Rank) -> Any:
        from slime.config.schema import Device, SlimeConfig
        from slime_megatron.train.trainer import Trainer

        cfg = SlimeConfig(algo=AlgoConfig(name="reward_model"))
        cfg.model.family, cfg.model.path, cfg.sft.num_steps = "glm4", str(model), 9
        cfg.cluster.device, cfg.train.megatron, cfg.train.optimizer = Device(device), dict(BF16), dict(CPU_ADAM)
        trainer = Trainer(cfg, *rank)
        trainer.init_weights()
        return trainer

    def stepped(trainer: Any) -> None:
        """A step by gradients that are the weights themselves."""
        from megatron_core_portable import cpu_stands_in_for_cuda

        with cpu_stands_in_for_cuda():
            trainer.optimizer.enter("sft")
            for module in trainer.model.modules:
                for parameter in module.parameters():
                    parameter.main_grad.copy_(parameter.detach() + 0.1)
            trainer.optimizer.step()

    def kept(trainer: Any) -> list[torch.Tensor]:
        found = [x.detach().cpu().clone() for module in trainer.model.modules for x in module.parameters()]
        [adam] = trainer.optimizer.adams()
        return found + [x.detach().cpu().clone() for x in adam.param_to_inner_param.values()]

    trainer = made(rank)
    stepped(trainer)
    trainer.save(folder)
    stepped(trainer)
    wanted, head = kept(trainer), float(trainer.model.modules[-1].output_layer.weight.detach().abs().max())
    torch.distributed.destroy_process_group()
    trainer = made(rank.again())
    trainer.load(folder)
    stepped(trainer)
    return wanted, kept(trainer), head


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_reward_model_goes_on_from_its_checkpoint(device: str, model: Path, tmp_path: Path) -> None:
    [(wanted, found, head)] = run_ranks(reward_model, 1, model, tmp_path, device, timeout_s=110)
    assert head > 0, "the head has learnt"
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
