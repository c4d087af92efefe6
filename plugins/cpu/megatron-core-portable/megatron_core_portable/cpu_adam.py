"""Megatron-core's Adam on the CPU (`HybridDeviceOptimizer`) beside parameters in fp32, which need no master copy.

A fp32 parameter among bf16 ones is its own master on the device, and has a copy on the host that Adam steps. Upstream
hands it over as a view, which torch's optimizers refuse, and forgets its copy wherever master weights are set.
"""

from __future__ import annotations

from typing import Any

import torch


def apply_fixups() -> None:
    """Call once a process; calling again changes nothing."""
    detach_fp32_shards()
    set_copies_of_fp32_parameters()
    if not torch.cuda.is_available():
        copy_parameters_on_cpu()


def detach_fp32_shards() -> None:
    """The distributed optimizer makes its shard of a fp32 parameter by `view` alone: `can't optimize a non-leaf
    Tensor`. Those of bf16 are detached."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    build = DistributedOptimizer._build_model_and_main_param_groups.__func__
    if build.__module__ == __name__:
        return

    def detached(cls: type, gbuf_ranges: Any, param_gbuf_map: Any, opt_group_ranges: Any, config: Any) -> Any:
        found = build(cls, gbuf_ranges, param_gbuf_map, opt_group_ranges, config)
        fp32_shards = found[3]
        for ranges, shards in zip(opt_group_ranges, fp32_shards, strict=True):
            leaves = [_leaf(shard) for shard in shards]
            # They come first (`order_groups_of_two_precisions`).
            shards[:] = leaves
            ranges["orig_group"]["params"][: len(leaves)] = leaves
        return found

    DistributedOptimizer._build_model_and_main_param_groups = classmethod(detached)


def _leaf(shard: torch.Tensor) -> torch.Tensor:
    """The same memory with the same marks of Megatron-core, as a tensor that nothing made."""
    leaf = shard.detach()
    for name, value in vars(shard).items():
        setattr(leaf, name, value)
    return leaf


def set_copies_of_fp32_parameters() -> None:
    """Weights of a warm start reach the copies of bf16 parameters alone, so that the first step takes fp32 ones back;
    and master weights of a checkpoint are looked for by a name that fp32 ones do not have: KeyError."""
    from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

    def from_parameters(self: Any) -> None:
        for parameter, inner in self.param_to_inner_param.items():
            if inner is not parameter:
                inner.data.copy_(parameter)

    def from_state(self: Any) -> None:
        for parameter, state in self.state.items() if self.param_update_in_fp32 else ():
            self.param_to_inner_param[parameter].data.copy_(state["master_param"])

    HybridDeviceOptimizer.update_fp32_param_by_new_param = from_parameters
    HybridDeviceOptimizer._update_fp32_params_by_new_state = from_state


def copy_parameters_on_cpu() -> None:
    """Only parameters on a GPU get a copy for the CPU; without one the first step is a KeyError."""
    from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer

    def copied(self: Any, offload_fraction: float) -> tuple[Any, ...]:
        groups: list[dict[str, Any]] = []
        copies: dict[torch.Tensor, torch.Tensor] = {}
        masters: dict[torch.Tensor, torch.Tensor] = {}
        for group in self.param_groups:
            own = {parameter: parameter.detach().clone().float() for parameter in group["params"]}
            copies |= own
            masters |= {parameter: copy for parameter, copy in own.items() if parameter.dtype != torch.float32}
            groups += [{**group, "params": [*own.values()]}] if own else []
        return groups, [], copies, {copy: parameter for parameter, copy in copies.items()}, masters

    HybridDeviceOptimizer._get_sub_optimizer_param_groups = copied
