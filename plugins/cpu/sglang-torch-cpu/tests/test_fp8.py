"""FP8 layers of SGLang on a plain CPU: what they compute, against float64."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sglang_torch_cpu import fp8

BLOCK = 128
SIZES = [BLOCK, BLOCK]


def held(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix in FP8, its scales, and its values in float64."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    scales = torch.stack([torch.stack([block.abs().max() for block in row]) for row in blocks(matrix)]) / 448
    weight = (matrix / spread(scales, shape)).to(torch.float8_e4m3fn)
    return weight, scales, weight.double() * spread(scales, shape).double()


def blocks(matrix: torch.Tensor) -> list[list[torch.Tensor]]:
    return [list(rows.split(BLOCK, dim=1)) for rows in matrix.split(BLOCK)]


def spread(scales: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The scale of each element, from those of the blocks."""
    return scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: shape[0], : shape[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype: torch.dtype, with_bias: bool) -> None:
    weight, scales, exact = held(200, 300)
    x, bias = torch.randn(5, 300).to(dtype), torch.randn(200).to(dtype) if with_bias else None
    layer = SimpleNamespace(weight=weight, weight_scale_inv=scales)
    found = fp8.apply_linear(SimpleNamespace(weight_block_size=SIZES), layer, x, bias)
    wanted = torch.nn.functional.linear(x.double(), exact, None if bias is None else bias.double())
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7  # rounding of weights and result, relative to the largest
    assert (found.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context
    from sglang.srt.layers.moe import MoeRunnerConfig
    from sglang.srt.server_args import ServerArgs

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    args = ServerArgs(model_path=str(tmp_path), device="cpu", attention_backend="torch_native")
    monkeypatch.setattr(runtime_context._CONTEXT, "_server_args", args)
    num_experts, hidden, inner, num_tokens = 4, 256, 128, 9
    up = [held(2 * inner, hidden, seed=expert) for expert in range(num_experts)]
    down = [held(hidden, inner, seed=10 + expert) for expert in range(num_experts)]
    layer = SimpleNamespace(
        num_experts=num_experts,
        w13_weight=torch.stack([each[0] for each in up]),
        w13_weight_scale_inv=torch.stack([each[1] for each in up]),
        w2_weight=torch.stack([each[0] for each in down]),
        w2_weight_scale_inv=torch.stack([each[1] for each in down]),
    )
    x = torch.randn(num_tokens, hidden, generator=torch.Generator().manual_seed(1))
    experts = torch.tensor([[token % 3, 3] for token in range(num_tokens)])  # the last of them for all
    shares = torch.rand(num_tokens, 2, generator=torch.Generator().manual_seed(2))
    method = SimpleNamespace(weight_block_size=SIZES, moe_runner_config=MoeRunnerConfig(activation="silu"))
    dispatched = SimpleNamespace(hidden_states=x, topk_output=(shares, experts, None))
    found = fp8.apply_experts(method, layer, dispatched).hidden_states
    wanted = torch.zeros(num_tokens, hidden, dtype=torch.float64)
    for token in range(num_tokens):
        for expert, share in zip(experts[token], shares[token], strict=True):
            gate, linear = (x[token].double() @ up[expert][2].t()).chunk(2)
            wanted[token] += share * (torch.nn.functional.silu(gate) * linear) @ down[expert][2].t()
    assert (found.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max()
