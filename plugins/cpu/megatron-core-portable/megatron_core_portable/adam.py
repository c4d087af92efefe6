"""Adam in the shape that Megatron-core's distributed optimizer and its checkpoints expect of apex.

Megatron-core falls back to `torch.optim.AdamW` where apex and Transformer Engine are absent, and then cannot
resume: torch keeps `step` as a tensor per parameter, while the checkpoint code stores it once per parameter group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    """Adam (Kingma & Ba 2015) or AdamW (Loshchilov & Hutter 2019) on torch's fused kernels, on CPU and CUDA.

    As in apex, a parameter's state is `exp_avg` and `exp_avg_sq` alone, and `step` lives in the parameter group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adam_w_mode: bool = True,
    ) -> None:
        self._kernel = torch._fused_adamw_ if adam_w_mode else torch._fused_adam_
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step over the parameters that have a gradient."""
        assert closure is None, "Megatron-core passes no closure"
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            if params := [param for param in group["params"] if param.grad is not None]:
                self._step_group(group, params)

    def _step_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        states = [self._state_of(param) for param in params]
        steps = torch.full((len(params),), float(group["step"]), device=params[0].device)
        self._kernel(
            params,
            [param.grad for param in params if param.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            list(steps.unbind()),
            amsgrad=False,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=None,
            found_inf=None,
        )

    def _state_of(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = self.state[param]
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(param), torch.zeros_like(param)
        return state

    def forget(self) -> None:
        """Start over: moments zero, step 0. They exist from then on, so that a checkpoint can be written."""
        self.state.clear()
        for group in self.param_groups:
            group["step"] = 0
            for param in group["params"]:
                self._state_of(param)
