"""The trainer's part of a checkpoint: Megatron-core's torch_dist format, re-shardable into any parallel layout.

The folder is staged, synced, checked for truncation and published by `slime.checkpoints`; this module only fills it
and reads it. A SlimeError says that the disk is full or refuses a write, or that a folder holds no checkpoint, one of
another model, or one whose pickles are more than data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_inplace
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.serialization import get_default_load_sharded_strategy
from megatron.core.dist_checkpointing.strategies.fully_parallel import (
    FullyParallelLoadStrategyWrapper,
    FullyParallelSaveStrategyWrapper,
)
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

from slime.digest import FileFacts
from slime.errors import SlimeError
from slime_megatron.train import heap, reference
from slime_megatron.train.checkpoint_errors import megatron_errors
from slime_megatron.train.critic import Critic
from slime_megatron.train.megatron import Base, Model
from slime_megatron.train.optimizer import Optimizer, parts_of
from slime_megatron.train.shards import HostCopy, ShardWriter, only_data

_SHARDING = "fully_reshardable"


class Saving:
    """Collective: writes everything into the existing folder `path`.

    Args:
        host_copy: as for `ShardWriter`: with one, the files are not written yet when this returns, and the training may
            go on.
    """

    def __init__(
        self,
        path: Path,
        model: Model,
        optimizer: Optimizer,
        ref: reference.Weights | None,
        host_copy: HostCopy | None = None,
        critic: Critic | None = None,
    ) -> None:
        self._path, self._writer = path, ShardWriter(host_copy)
        state = sharded(model) | {"optimizer": _optimizer_state(model, optimizer, is_loading=False)}
        facts = _facts(model, optimizer, ref) | {"critic": critic and _progress(critic.optimizer)}
        state |= _reference_state(model, ref) | {"rng": _rng_object(), "slime": facts}
        state |= _critic_state(critic, is_loading=False) if critic else {}
        has = (ref is not None, critic is not None)
        with megatron_errors(path, "cannot be written"):
            _save(path, state, self._writer, host_copy.distributions if host_copy else {}, has)

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._writer.is_done

    def wait(self) -> dict[str, FileFacts]:
        """Until the files are there; returns the facts of this rank's shards, by name."""
        with megatron_errors(self._path, "cannot be written"):
            self._writer.wait()
        heap.release()
        return self._writer.written


def load(path: Path, model: Model, optimizer: Optimizer, critic: Critic | None = None) -> reference.Weights | None:
    """Collective: take up what `save` wrote, in any layout; returns the reference weights if there were any.

    Random state is taken up in the layout that it was saved in; another layout keeps its own.

    Args:
        critic: takes up its own; the checkpoint has one (`read_facts`).
    """
    with megatron_errors(path, "is not a checkpoint of this model"), only_data(path):
        facts = dist_checkpointing.load_common_state_dict(str(path))["slime"]
        _check_unfrozen(path, optimizer, facts)
        optimizer.set_schedule(facts["stage"])
        state = sharded(model) | {"optimizer": _optimizer_state(model, optimizer, is_loading=True)}
        if facts["has_reference"]:
            each = map(reference.tensors_of, model.modules)
            state |= _reference_state(model, [{key: held.detach().clone() for key, held in of.items()} for of in each])
        if critic:
            critic.optimizer.set_schedule(facts["critic"]["stage"])
            state |= _critic_state(critic, is_loading=True)
        if facts["layout"] == _layout(model):
            state["rng"] = _rng_object()
        loaded = _load(path, state)
    _take(model, loaded)
    _load_optimizer(optimizer, loaded["optimizer"], facts)
    if critic:
        _take(critic.model, loaded["critic"])
        _load_optimizer(critic.optimizer, loaded["critic"]["optimizer"], facts["critic"])
    if "rng" in state:
        _set_rng(loaded["rng"])
    if not facts["has_reference"]:
        return None
    return [_tensors(loaded[f"reference.{name}"]) for name, _ in _named(model)]


def save_weights(path: Path, model: Model, writer: ShardWriter, facts: Mapping[str, Any]) -> None:
    """Collective: write the weights alone into the existing folder `path`, with `facts`, the same on every rank."""
    state = sharded(model) | {"slime": dict(facts)}
    with megatron_errors(path, "cannot be written"):
        _save(path, state, writer)


def load_weights(path: Path, model: Model) -> None:
    """Collective: the weights of a checkpoint, in any layout and dtype, whether it has more than them or not.

    Of a model with adapters these, or all others, whichever the checkpoint holds (`base_of`).
    """
    state = sharded(model, learns=base_of(path) is not None)
    with megatron_errors(path, "is not a checkpoint of this model"), only_data(path):
        loaded = _load(path, state)
    _take(model, loaded)


def base_of(path: Path) -> Base | None:
    """Where the other weights of a checkpoint of adapters are; None: it holds the model itself."""
    with megatron_errors(path, "is not a checkpoint of this model"), only_data(path):
        found = dist_checkpointing.load_common_state_dict(str(path)).get("slime", {}).get("base")
    return Base(**found) if found else None


def read_facts(path: Path) -> dict[str, Any]:
    """What slime wrote beside the tensors of a checkpoint of its own."""
    with megatron_errors(path, "is not one of slime's"), only_data(path):
        return dict(dist_checkpointing.load_common_state_dict(str(path))["slime"])


def _save(
    path: Path,
    state: dict[str, Any],
    writer: ShardWriter,
    distributions: dict[tuple[bool, ...], Any] | None = None,
    has: tuple[bool, ...] = (),
) -> None:
    """Who writes what of a state that `has` the same parts is agreed upon once, and examined once."""
    distributions = {} if distributions is None else distributions
    strategy = FullyParallelSaveStrategyWrapper(writer, _dp_cp_group(), do_cache_distribution=True)
    strategy.cached_distribution = distributions.get(has)
    dist_checkpointing.save(state, str(path), strategy, validate_access_integrity=has not in distributions)
    distributions[has] = strategy.cached_distribution


def _load(path: Path, state: dict[str, Any]) -> Any:
    strategy = FullyParallelLoadStrategyWrapper(get_default_load_sharded_strategy(str(path)), _dp_cp_group())
    return dist_checkpointing.load(state, str(path), strategy, strict="raise_unexpected")


def _dp_cp_group() -> Any:
    return parallel_state.get_data_parallel_group(with_context_parallel=True)


def _metadata() -> dict[str, Any]:
    return {
        "dp_cp_group": _dp_cp_group(),
        "distrib_optim_sharding_type": _SHARDING,
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }


def _named(model: Model) -> Iterator[tuple[str, Any]]:
    """Modules by their key in the checkpoint; tensor keys inside are those of the whole model."""
    yield from ((f"model{index}", module) for index, module in enumerate(model.modules))


def sharded(model: Model, *, learns: bool = True) -> dict[str, Any]:
    """Where the parts of each parameter lie in a checkpoint: Megatron-core's sharded state, by module. Of a model with
    adapters these alone, or all others."""
    state = {name: module.sharded_state_dict(prefix="", metadata=_metadata()) for name, module in _named(model)}
    for name, module in _named(model) if model.adapters else ():
        learning = {key for key, parameter in module.named_parameters() if parameter.requires_grad}
        state[name] = {key: part for key, part in state[name].items() if (key in learning) == learns}
    return state


def _take(model: Model, loaded: Mapping[str, Any]) -> None:
    """Give the modules what was loaded."""
    for name, module in _named(model):
        module.load_state_dict(loaded[name], strict=model.adapters is None)


def _optimizer_state(model: Model, optimizer: Optimizer, *, is_loading: bool) -> Any:
    state = sharded(model)
    only = state["model0"] if len(state) == 1 else state
    return optimizer.megatron.sharded_state_dict(only, is_loading=is_loading, metadata=_metadata())


def _reference_state(model: Model, ref: reference.Weights | None) -> dict[str, Any]:
    """The reference weights under keys of their own, sharded as the model's parameters are."""
    if ref is None:
        return {}
    held = {
        id(tensor): values[name]
        for module, values in zip(model.modules, ref, strict=True)
        for name, tensor in reference.tensors_of(module).items()
        if name in values
    }
    left = {id(each) for module in model.modules for each in module.parameters() if each.requires_grad}

    def stood_in_for(entry: Any) -> Any:
        if isinstance(entry, ShardedTensor | ShardedTensorFactory):
            left.discard(id(entry.data))
            entry.data = held.get(id(entry.data), entry.data)  # what is frozen is the reference's as well
        return entry

    state = {f"reference.{name}": part for name, part in sharded(model).items()}
    dict_list_map_inplace(stood_in_for, state)
    assert not left, "what learns is in the sharded state itself"
    add_prefix_for_sharding(state, "reference.")
    return state


def _critic_state(critic: Critic, *, is_loading: bool) -> dict[str, Any]:
    """Its model and optimizer under keys of their own."""
    state = sharded(critic.model)
    state |= {"optimizer": _optimizer_state(critic.model, critic.optimizer, is_loading=is_loading)}
    add_prefix_for_sharding(state, "critic.")
    return {"critic": state}


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in state.items() if isinstance(value, torch.Tensor)}


def _layout(model: Model) -> tuple[int, ...]:
    config = model.config
    return (
        dist.get_world_size(),
        config.tensor_model_parallel_size,
        config.pipeline_model_parallel_size,
        config.virtual_pipeline_model_parallel_size or 1,
        config.context_parallel_size,
        config.expert_model_parallel_size,
    )


def _facts(model: Model, optimizer: Optimizer, ref: reference.Weights | None) -> dict[str, Any]:
    return _progress(optimizer) | {
        "layout": _layout(model),
        "has_reference": ref is not None,
        "unfrozen_by": optimizer.unfrozen_by,
        "base": model.base and model.base._asdict(),
    }


def _progress(optimizer: Optimizer) -> dict[str, Any]:
    """How far an optimizer has come in which stage."""
    parts = [part.state_dict()["optimizer"] for part in parts_of(optimizer.megatron) if part.optimizer is not None]
    steps = [group.get("step", 0) for part in parts for group in part["param_groups"]]
    return {
        "stage": optimizer.stage,
        "adam_step": max(steps),
        "scheduler_steps": optimizer.scheduler.num_steps,
    }


def _check_unfrozen(path: Path, optimizer: Optimizer, facts: Mapping[str, Any]) -> None:
    """What was frozen has neither moments nor master weights in the checkpoint."""
    for key in optimizer.unfrozen_by:
        if key not in facts["unfrozen_by"]:
            raise SlimeError(
                f"the checkpoint {path} was saved without it and holds no optimizer state of what it lets learn",
                where=key,
                todo="Leave it empty, or start a new run on this one's export: model.path=<run>/export.",
            )


def _load_optimizer(optimizer: Optimizer, loaded: Any, facts: Mapping[str, Any]) -> None:
    """Moments and master weights from the checkpoint; parameter groups from the live optimizer.

    The number of chained optimizers differs between layouts (experts have one of their own under expert
    parallelism), so the saved groups do not fit; all that they say beyond the config is the step.
    """
    parts = parts_of(optimizer.megatron)
    states = [loaded] if len(parts) == 1 else [loaded[index] for index in range(len(parts))]
    for part, state in zip(parts, states, strict=True):
        if part.optimizer is None:
            continue
        state["optimizer"] = part.state_dict()["optimizer"]
        state.setdefault("param_state_sharding_type", _SHARDING)
        for group in state["optimizer"]["param_groups"]:
            group["step"] = facts["adam_step"]
    optimizer.megatron.load_state_dict(states[0] if len(parts) == 1 else dict(enumerate(states)))
    optimizer.scheduler.num_steps = facts["scheduler_steps"]
    optimizer.scheduler.step(0)


def _rng_object() -> ShardedObject:
    """Each rank's own random state."""
    state = {"cpu": torch.get_rng_state(), "tracker": get_cuda_rng_tracker().get_states()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return ShardedObject("rng", state, (dist.get_world_size(),), (dist.get_rank(),))


def _set_rng(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    get_cuda_rng_tracker().set_states(state["tracker"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
