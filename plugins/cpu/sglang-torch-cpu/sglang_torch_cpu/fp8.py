"""FP8 weights in SGLang on a plain CPU: dequantise what a product needs, and multiply in the engine's own precision.

Weights are those of a GPU's engine, bit for bit; activations keep their precision, which GPUs quantise too. So tests
of publishing need no GPU, and a gap between engine and trainer here is that of the weights alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch


def install() -> None:
    """The platform calls this in each worker, before the model is built."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod, Fp8MoEMethod
    from sglang.srt.models.deepseek_common.deepseek_weight_loader import DeepseekV2WeightLoaderMixin as Latent

    Fp8Config.get_supported_act_dtypes = classmethod(supported_dtypes)
    Fp8LinearMethod.apply = apply_linear
    Fp8MoEMethod.apply = apply_experts
    vars(sys.modules[Latent.__module__])["block_quant_to_tensor_quant"] = absorbed


def supported_dtypes(_config: type) -> list[torch.dtype]:
    return [torch.bfloat16, torch.half, torch.float32]


def apply_linear(
    method: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Instead of `Fp8LinearMethod.apply`."""
    weight = dequantized(layer.weight, layer.weight_scale_inv, method.weight_block_size, x.dtype)
    return torch.nn.functional.linear(x, weight, bias)


def apply_experts(method: Any, layer: torch.nn.Module, dispatch_output: Any) -> Any:
    """Instead of `Fp8MoEMethod.apply`: SGLang's own experts in torch, which ask for one expert's weights at a time."""
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    x = dispatch_output.hidden_states
    experts = _Experts(layer, method.weight_block_size, x.dtype)
    output = moe_forward_native(experts, x, dispatch_output.topk_output, method.moe_runner_config)
    return StandardCombineInput(hidden_states=output)


def absorbed(weight: Any, scales: Any, block: list[int]) -> tuple[torch.Tensor, float]:
    """Latent attention's up projection of the values, which SGLang requantises elsewhere than on CUDA: dequantised, as
    it is there. It copies the parts into what it made first, so their precision stays."""
    return dequantized(weight, scales, block, torch.get_default_dtype()), 1.0


def dequantized(weight: Any, scales: Any, block: list[int], dtype: torch.dtype) -> torch.Tensor:
    from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant

    found: torch.Tensor = block_quant_dequant(weight, scales, block, dtype)
    return found


@dataclass(frozen=True)
class _Experts:
    """A layer of experts, whose matrices `moe_forward_native` finds dequantised."""

    layer: Any
    block: list[int]
    dtype: torch.dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    @property
    def w13_weight(self) -> _Matrices:
        return _Matrices(self.layer.w13_weight, self.layer.w13_weight_scale_inv, self)

    @property
    def w2_weight(self) -> _Matrices:
        return _Matrices(self.layer.w2_weight, self.layer.w2_weight_scale_inv, self)


@dataclass(frozen=True)
class _Matrices:
    weight: torch.Tensor
    scales: torch.Tensor
    experts: _Experts

    def __getitem__(self, expert: int) -> torch.Tensor:
        return dequantized(self.weight[expert], self.scales[expert], self.experts.block, self.experts.dtype)
