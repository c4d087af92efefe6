"""What surrounds the stock kernels of sparse attention, and on a GPU that has them the kernels themselves.

On CPU two functions stand where the kernels are called. They compute in plain torch operations what the kernels'
documentation says: FlashMLA's README (one row of keys a query, of which `topk_length` count; a log-sum-exp to the base
2, or e in later versions) and cuDNN-frontend's docstrings (a natural log-sum-exp without the sink; sums of fp32).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from slime_megatron.sparse_attention import stock
from slime_megatron.sparse_attention.plain import PlainSparseAttention
from slime_megatron.sparse_attention.sparse_attention import sparse_attention
from slime_megatron.sparse_attention.stock import SIZE, VALUE_SIZE, StockKernels, Unusable, by_stock_kernels, check_fit

SCALE = SIZE**-0.5
CPU = torch.device("cpu")


def scores_of(query: Tensor, kv: Tensor, rows: Tensor, length: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """fp32 [t, h, k], -inf behind a query's `length` keys, and the keys [t, k, d]."""
    assert rows.dtype == length.dtype == torch.int32
    assert rows.size(1) % 128 == 0
    assert query.size(1) in (64, 128)
    counted = torch.arange(rows.size(1)) < length[:, None]
    assert bool((rows[counted] >= 0).all()), "the chosen keys come first"
    keys = kv.float()[rows.clamp(min=0).long()]
    scores = torch.einsum("thd,tkd->thk", query.float(), keys) * scale
    return scores.masked_fill(~counted[:, None], -math.inf), keys


def forward(
    query: Tensor, kv: Tensor, indices: Tensor, scale: float, *, d_v: int, topk_length: Tensor, base: float
) -> tuple[Tensor, Tensor, Tensor]:
    assert kv.size(1) == indices.size(1) == 1
    scores, keys = scores_of(query, kv[:, 0], indices[:, 0], topk_length, scale)
    lse = scores.logsumexp(-1)
    output = torch.einsum("thk,tkd->thd", scores.softmax(-1), keys[..., :d_v])
    return output.to(query.dtype), scores.amax(-1), lse / math.log(base)


def backward(
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    attn_sink: Tensor,
    topk_idxs: Tensor,
    *,
    softmax_scale: float,
    topk_length: Tensor,
) -> dict[str, Tensor]:
    assert not any(tensor.requires_grad for tensor in (q, kv, out, dout, lse))
    assert all(tensor.is_contiguous() for tensor in (q, kv, out, dout, lse, topk_idxs))
    scores, keys = scores_of(q, kv, topk_idxs, topk_length, softmax_scale)
    weights = (scores - torch.logaddexp(lse, attn_sink)[..., None]).exp()
    by_weights = torch.einsum("thv,tkv->thk", dout.float(), keys[..., :VALUE_SIZE])
    mean = (out.float() * dout.float()).sum(-1, keepdim=True)
    by_scores = weights * (by_weights - mean) * softmax_scale
    by_keys = torch.einsum("thk,thd->tkd", by_scores, q.float())
    by_keys[..., :VALUE_SIZE] += torch.einsum("thk,thv->tkv", weights, dout.float())
    by_kv = torch.zeros_like(kv, dtype=torch.float32)
    by_kv.index_add_(0, topk_idxs.clamp(min=0).flatten(), by_keys.flatten(0, 1))
    return {"dq": torch.einsum("thk,tkd->thd", by_scores, keys).to(q.dtype), "dkv": by_kv.to(kv.dtype)}


NATURAL, BINARY = (StockKernels(partial(forward, base=base), backward) for base in (math.e, 2.0))


def inputs(
    num_heads: int, num_keys: int, dtype: torch.dtype, device: torch.device, num_rows: int = 300
) -> list[Tensor]:
    """Query, latents, chosen keys (1 to `num_keys` of any rows, then -1) and the output's gradient."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(40, num_heads, SIZE), (num_rows, SIZE), (40, num_heads, VALUE_SIZE)]
    query, latents, grad = (torch.randn(*shape, generator=generator).to(device, dtype) for shape in shapes)
    rows = torch.rand(40, num_rows, generator=generator).argsort(1)[:, :num_keys].int()
    length = torch.linspace(1, num_keys, 40).int()[:, None]
    return [query, latents, rows.masked_fill(torch.arange(num_keys) >= length, -1).to(device), grad]


def with_gradients(attend: Callable[..., Tensor], query: Tensor, latents: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    tensors = [tensor.clone().requires_grad_() for tensor in (query, latents)]
    output = attend(*tensors)
    return output.detach(), *torch.autograd.grad(output, tensors, grad)


def plain(query: Tensor, latents: Tensor, selected: Tensor) -> Tensor:
    output: Tensor = PlainSparseAttention.apply(query, latents, selected, SCALE, VALUE_SIZE)  # type: ignore[no-untyped-call]
    return output


@pytest.mark.parametrize("kernels", [NATURAL, BINARY], ids=["base e", "base 2"])
@pytest.mark.parametrize(("num_heads", "num_keys"), [(64, 128), (40, 128), (72, 33), (64, 200)])
def test_heads_and_keys_are_padded_and_logarithms_converted(
    kernels: StockKernels, num_heads: int, num_keys: int
) -> None:
    kernels = stock.trial(kernels, CPU, stock.padded_heads(num_heads), 128)
    query, latents, selected, grad = inputs(num_heads, num_keys, torch.float32, CPU)
    got = with_gradients(lambda q, kv: by_stock_kernels(q, kv, selected, SCALE, kernels), query, latents, grad)
    wanted = with_gradients(lambda q, kv: plain(q, kv, selected), query, latents, grad)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=2e-5)


def doubled(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return found | {"dkv": 2 * found["dkv"]}


@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        (StockKernels(partial(forward, base=10.0), backward), r"another base than e and 2 \(2.303\)"),
        (StockKernels(partial(forward, base=2.0), lambda *a, **k: doubled(backward(*a, **k))), "latents' gradients"),
        (StockKernels(lambda q, *a, **k: forward(-q, *a, **k, base=2.0), backward), "values of .* are off by"),
    ],
    ids=["logarithms", "gradients", "values"],
)
def test_kernels_that_compute_something_else_are_refused(kernels: StockKernels, message: str) -> None:
    with pytest.raises(Unusable, match=message):
        stock.trial(kernels, CPU, 64, 128)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((10, 64, SIZE, VALUE_SIZE), "not for compute capability 10"),
        ((9, 64, 320, 256), "keys are of 320 and values of 256"),
        ((9, 16, SIZE, VALUE_SIZE), "not 16"),
        ((9, 160, SIZE, VALUE_SIZE), "not 160"),
    ],
)
def test_what_the_kernels_do_not_know(given: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(Unusable, match=message):
        check_fit(*given)


def test_shapes_that_they_are_asked_with() -> None:
    for num_heads in (32, 64, 100, 128):
        check_fit(9, num_heads, SIZE, VALUE_SIZE)
    assert [stock.padded_heads(number) for number in (32, 64, 65, 128)] == [64, 64, 128, 128]
    assert [stock.padded_keys(number) for number in (1, 128, 129, 1500, 2048)] == [128, 128, 256, 2048, 2048]


@pytest.mark.skipif(find_spec("sgl_kernel") is not None, reason="says what a machine without the kernels does")
def test_missing_kernels_are_named() -> None:
    with pytest.raises(Unusable, match="ModuleNotFoundError: No module named 'sgl_kernel'"):
        stock._tried(CPU, 64, 128)


@pytest.fixture
def hopper(device: torch.device) -> torch.device:
    """A GPU on which the kernels are installed: a test that needs them says why not, if it is not."""
    if device.type != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("FlashMLA and cuDNN-frontend are asked on Hopper alone")
    pytest.importorskip("sgl_kernel", reason="FlashMLA comes with SGLang's kernels")
    pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed")
    pytest.importorskip("cutlass", reason="nvidia-cutlass-dsl is not installed, or its folder not on the path")
    return device


@pytest.mark.gpu
@pytest.mark.parametrize("num_heads", [64, 128, 48])
def test_stock_kernels_on_a_gpu(num_heads: int, hopper: torch.device) -> None:
    """Beside float64, and beside the Triton kernels.

    Inputs are exact in bf16. Both ways round probabilities, their gradients and all results to bf16, 2^-9 = 2e-3 of an
    entry at most: that is the distance of either from float64, 2.4e-3 of gradients. Independent roundings are 1.4
    times as far from each other; 3.4e-3 was seen.
    """
    from slime_megatron.sparse_attention.kernels import TritonSparseAttention

    query, latents, selected, grad = inputs(num_heads, 1024, torch.bfloat16, hopper, num_rows=1500)
    kernels = stock._tried(hopper, stock.padded_heads(num_heads), 1024)
    got = with_gradients(lambda q, kv: by_stock_kernels(q, kv, selected, SCALE, kernels), query, latents, grad)
    exact = (query.double(), latents.double(), grad.double())
    wanted = with_gradients(lambda q, kv: plain(q, kv, selected), *exact)

    def triton(q: Tensor, kv: Tensor) -> Tensor:
        output: Tensor = TritonSparseAttention.apply(q, kv, selected, SCALE, VALUE_SIZE)  # type: ignore[no-untyped-call]
        return output

    ours = with_gradients(triton, query, latents, grad)
    names = ("values", "queries' gradients", "latents' gradients")
    for name, value, other, reference in zip(names, got, ours, wanted, strict=True):
        assert value.dtype == torch.bfloat16
        stock_error, triton_error = (float((x.double() - reference).norm() / reference.norm()) for x in (value, other))
        assert stock_error < 6e-3, f"{name} are off by {stock_error:.1e}"
        assert stock_error < 1.5 * triton_error + 1e-4, f"{name}: {stock_error:.1e}, Triton's {triton_error:.1e}"
        assert (value.double() - other.double()).norm() < 5e-3 * reference.norm(), name


@pytest.mark.gpu
def test_the_stock_kernels_are_chosen(hopper: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    stock._stock_kernels.cache_clear()
    query, latents, selected, grad = inputs(64, 1024, torch.bfloat16, hopper, num_rows=1500)
    with_gradients(lambda q, kv: sparse_attention(q, kv, selected, SCALE, VALUE_SIZE), query, latents, grad)
    assert "sparse attention of 64 heads to 1024 keys is computed by FlashMLA and cuDNN-frontend" in caplog.messages
