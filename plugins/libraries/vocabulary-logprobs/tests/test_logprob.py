"""Chunked log-probs and entropies against torch's log_softmax(logits / temperature), in float64, with gradients."""

import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from vocabulary_logprobs import logprob
from vocabulary_logprobs.logprob import PlainKernels, logprobs_and_entropy, top_logprobs, vocabulary_kernels

NUM_TOKENS, HIDDEN, VOCAB, NUM_OTHERS = 23, 16, 40, 5
PLAIN = PlainKernels()
SHARDED_TEMPERATURE, SHARDED_TOPS = 0.7, (1, 6, 25, VOCAB)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(NUM_TOKENS, HIDDEN, generator=generator, dtype=torch.float64)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64)
    return hidden, weight, torch.randint(0, VOCAB, (NUM_TOKENS,), generator=generator)


def others() -> Tensor:
    """[NUM_OTHERS, NUM_TOKENS] further tokens, all different, with the label among those of every third place; the last
    place has one token alone."""
    generator = torch.Generator().manual_seed(1)
    found = torch.stack([torch.randperm(VOCAB, generator=generator)[:NUM_OTHERS] for _ in range(NUM_TOKENS)], dim=1)
    labels = inputs()[2]
    is_label = found == labels
    found[2, ::3] = labels[::3].where(~is_label.any(dim=0)[::3], found[2, ::3])
    found[:, -1] = 0
    return found


def plain(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float = 1.0, others: Tensor | None = None
) -> Tensor:
    logp = torch.log_softmax(hidden @ weight.t() / temperature, dim=1)
    scores = [logp.gather(1, labels[:, None])[:, 0], -(logp.exp() * logp).sum(1)]
    return torch.stack([*scores, *([] if others is None else logp.gather(1, others.t()).t())])


def factors(entropy_gradient: bool, num_others: int = 0) -> Tensor:
    """What the outputs are weighted with in a scalar loss; those of other tokens at the last place with 0."""
    factors = torch.linspace(-1, 2, (2 + num_others) * NUM_TOKENS, dtype=torch.float64).view(2 + num_others, -1)
    factors[1] *= float(entropy_gradient)
    factors[2:, -1] = 0
    return factors


@pytest.mark.parametrize("entropy_gradient", [True, False])
@pytest.mark.parametrize(("chunk_tokens", "temperature"), [(1, 1.0), (7, 0.7), (7, 1.0), (23, 1.3), (100, 1.0)])
def test_equals_log_softmax(
    lone_group: dist.ProcessGroup, chunk_tokens: int, temperature: float, entropy_gradient: bool
) -> None:
    hidden, weight, labels = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    wanted = plain(hidden, weight, labels, temperature)
    options = {
        "chunk_tokens": chunk_tokens,
        "temperature": temperature,
        "entropy_gradient": entropy_gradient,
        "group": lone_group,
        "kernels": PLAIN,
    }
    got = logprobs_and_entropy(hidden, weight, labels, **options)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)  # float64 sums in another order
    loss_factors = factors(entropy_gradient)
    gradients = torch.autograd.grad((got * loss_factors).sum(), (hidden, weight))
    wanted_gradients = torch.autograd.grad((wanted * loss_factors).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, wanted_gradients, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_other_tokens_have_log_probs_and_gradients(lone_group: dist.ProcessGroup, entropy_gradient: bool) -> None:
    hidden, weight, labels = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    assert (others() == labels).any(dim=0).sum() >= NUM_TOKENS / 3
    wanted = plain(hidden, weight, labels, 0.7, others())
    options = {"entropy_gradient": entropy_gradient, "group": lone_group, "kernels": PLAIN, "others": others()}
    got = logprobs_and_entropy(hidden, weight, labels, chunk_tokens=7, temperature=0.7, **options)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    loss_factors = factors(entropy_gradient, NUM_OTHERS)
    gradients = torch.autograd.grad((got * loss_factors).sum(), (hidden, weight))
    wanted_gradients = torch.autograd.grad((wanted * loss_factors).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, wanted_gradients, rtol=1e-12, atol=1e-12)


def test_a_gradient_that_cancels_keeps_its_digits_in_bf16(lone_group: dist.ProcessGroup) -> None:
    """sum(p_i log p_i) over the whole vocabulary: its gradients p_i (log p_i + 1) sum to something large, which leaves
    p_i (log p_i + H). bf16 rounds the result once, 2^-9, after products of bf16 logits; not each of the terms."""
    hidden, weight, labels = (x.bfloat16() if x.is_floating_point() else x for x in inputs())
    everything = torch.arange(VOCAB)[:, None].expand(-1, NUM_TOKENS)
    hidden = (hidden / 50).requires_grad_()  # almost uniform: p_i (log p_i + H) is small beside p_i (log p_i + 1)
    options = {"entropy_gradient": False, "group": lone_group, "kernels": PLAIN, "others": everything}
    got = logprobs_and_entropy(hidden, weight, labels, chunk_tokens=7, **options)[2:]
    (gradient,) = torch.autograd.grad((got.exp() * got).sum(), hidden)
    exact = hidden.detach().double().requires_grad_()
    product = exact @ weight.double().t()
    logits = product + ((hidden @ weight.t()).double() - product).detach()  # rounded as those of the function
    logp = logits.log_softmax(1)
    (wanted,) = torch.autograd.grad((logp.exp() * logp).sum(), exact)
    assert float((gradient.double() - wanted).norm() / wanted.norm()) < 1e-2


def sharp_inputs() -> tuple[Tensor, Tensor]:
    """Whose logits are whole numbers, so that many of a place are equal."""
    hidden, weight, _ = inputs()
    return hidden.round(), weight.round()


def most_probable(hidden: Tensor, weight: Tensor, k: int, temperature: float) -> tuple[Tensor, Tensor]:
    """In Python: by logit, and of equal ones the lower id first."""
    logits = hidden @ weight.t()
    order = [sorted(range(len(weight)), key=lambda id: (-float(row[id]), id))[:k] for row in logits]
    ids = torch.tensor([sorted(row) for row in order])
    return ids, torch.log_softmax(logits / temperature, dim=1).gather(1, ids)


@pytest.mark.parametrize("k", [1, 6, VOCAB])
def test_the_most_probable_tokens(lone_group: dist.ProcessGroup, k: int) -> None:
    for hidden, weight in (inputs()[:2], sharp_inputs()):
        options = {"chunk_tokens": 7, "group": lone_group, "kernels": PLAIN, "temperature": 0.7}
        ids, logprobs = top_logprobs(hidden, weight, k, **options)
        wanted_ids, wanted = most_probable(hidden, weight, k, 0.7)
        assert torch.equal(ids, wanted_ids)
        torch.testing.assert_close(logprobs, wanted, rtol=1e-12, atol=1e-12)


def test_little_memory_is_taken_for_the_most_probable_tokens(
    lone_group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the logits of a chunk: a few rows at a time, and the same tokens."""
    monkeypatch.setattr(logprob, "MOST_AT_ONCE", 3 * VOCAB)
    hidden, weight = sharp_inputs()
    ids, _ = top_logprobs(hidden, weight, 6, chunk_tokens=NUM_TOKENS, group=lone_group, kernels=PLAIN)
    assert torch.equal(ids, most_probable(hidden, weight, 6, 1.0)[0])
    values, largest = hidden @ weight.t(), LargestResult()
    with largest:
        logprob._largest(values, 2)
    assert largest.numel == 3 * VOCAB


def test_a_place_that_is_not_a_number_has_log_probs_that_are_none(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, _ = inputs()
    hidden[3] = torch.nan
    _, logprobs = top_logprobs(hidden, weight, 4, chunk_tokens=7, group=lone_group, kernels=PLAIN)
    assert logprobs[3].isnan().all()
    assert logprobs[7:].isfinite().all()


def test_large_logits_do_not_overflow(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = (x.float() if x.is_floating_point() else x for x in inputs())
    options = {"chunk_tokens": 5, "entropy_gradient": True, "group": lone_group, "kernels": PLAIN}
    got = logprobs_and_entropy(hidden * 1000, weight, labels, **options)
    assert got.isfinite().all()
    # fp32 logits of order 1e4 are good to 1e-3
    torch.testing.assert_close(
        got[0], plain(hidden.double() * 1000, weight.double(), labels)[0].float(), atol=2e-2, rtol=1e-6
    )


def test_bf16_weights_get_fp32_logprobs_and_a_gradient_of_their_own_type(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = inputs()
    hidden, weight = hidden.bfloat16().requires_grad_(), weight.bfloat16().requires_grad_()
    got = logprobs_and_entropy(
        hidden, weight, labels, chunk_tokens=4, entropy_gradient=False, group=lone_group, kernels=PLAIN
    )
    got[0].sum().backward()
    assert got.dtype == torch.float32
    assert weight.grad.dtype == torch.bfloat16
    wanted = torch.autograd.grad(plain(hidden.double(), weight.double(), labels)[0].sum(), weight)[0]
    # logits and their gradients are rounded to bf16 (2^-9 relative) before each product
    assert (weight.grad.double() - wanted.double()).norm() / wanted.double().norm() < 2e-2


def test_no_tensor_of_all_tokens_by_the_vocabulary_exists(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = torch.randn(512, 8), torch.randn(1000, 8), torch.zeros(512, dtype=torch.int64)
    hidden.requires_grad_()
    largest = LargestResult()
    with largest:
        got = logprobs_and_entropy(
            hidden, weight, labels, chunk_tokens=16, entropy_gradient=True, group=lone_group, kernels=PLAIN
        )
        got.sum().backward()
    assert largest.numel == 16 * 1000


class LargestResult(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation returns, backward included."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


class LogitsMade(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes how many rows each product of hidden states and the vocabulary has, and that no other's are left then."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self._last: Callable[[], object] = lambda: None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_made = func is torch.ops.aten.mm.default and args[1].shape == (HIDDEN, VOCAB)
        assert not is_made or self._last() is None, "two chunks of logits at once"
        result = func(*args, **(kwargs or {}))
        if is_made:
            self.rows.append(len(result))
            self._last = weakref.ref(result)
        return result


@pytest.mark.parametrize(
    ("chunk_tokens", "forward", "backward"), [(NUM_TOKENS, [23], []), (100, [23], []), (10, [3, 10, 10], [10, 3])]
)
def test_the_last_chunk_of_logits_is_kept_and_no_other(
    lone_group: dist.ProcessGroup, chunk_tokens: int, forward: list[int], backward: list[int]
) -> None:
    hidden, weight, labels = inputs()
    options = {"chunk_tokens": chunk_tokens, "entropy_gradient": True, "group": lone_group, "kernels": PLAIN}
    with LogitsMade() as made:
        logprobs_and_entropy(hidden, weight, labels, **options)
        assert made.rows == forward, "nothing is kept where there is no gradient"
        got = logprobs_and_entropy(hidden.requires_grad_(), weight.requires_grad_(), labels, **options).sum()
        assert made.rows == 2 * forward
        first = torch.autograd.grad(got, (hidden, weight), retain_graph=True)
        assert made.rows == 2 * forward + backward
    # Its gradient was written over it, so it is computed again.
    again = torch.autograd.grad(got, (hidden, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_a_main_gradient_is_added_to_and_autograd_gets_a_placeholder(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = inputs()
    weight.requires_grad_()
    options = {"chunk_tokens": 7, "entropy_gradient": True, "group": lone_group, "kernels": PLAIN}
    (wanted,) = torch.autograd.grad(logprobs_and_entropy(hidden, weight, labels, **options).sum(), weight)
    main_grad = torch.ones_like(weight)
    logprobs_and_entropy(hidden, weight, labels, main_grad=main_grad, **options).sum().backward()
    torch.testing.assert_close(main_grad, wanted + 1, rtol=1e-12, atol=1e-12)
    assert weight.grad_added_to_main_grad
    assert weight.grad.data_ptr() == weight.data_ptr(), "the placeholder takes memory of its own"


def test_a_sharded_vocabulary_changes_nothing(tmp_path: Path) -> None:
    hidden, weight, labels = inputs()
    hidden.requires_grad_()
    weight.requires_grad_()
    wanted = plain(hidden, weight, labels, SHARDED_TEMPERATURE, others())
    loss = (wanted * factors(True, NUM_OTHERS)).sum()
    hidden_gradient, weight_gradient = torch.autograd.grad(loss, (hidden, weight))
    with get_context("spawn").Pool(2) as ranks:  # a fork may copy a lock that another thread holds
        found = ranks.map(partial(on_a_rank, tmp_path / "store"), range(2), chunksize=1)
    results = [[torch.from_numpy(each) for each in of_rank] for of_rank in found]
    tops = [most_probable(*sharp_inputs(), k, SHARDED_TEMPERATURE) for k in SHARDED_TOPS]
    for values, _, _, *found in results:
        torch.testing.assert_close(values, wanted.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found, [each for top in tops for each in top], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sum(result[1] for result in results), hidden_gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([result[2] for result in results]), weight_gradient, rtol=1e-12, atol=1e-12)


def on_a_rank(store: Path, rank: int) -> list[np.ndarray]:
    """Values, and gradients of the hidden states and of the weights of this rank, of two."""
    torch.set_num_threads(1)  # those of the process that forked this one are not here
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    hidden, weight, labels = inputs()
    shard = weight.chunk(2)[rank].clone().requires_grad_()
    hidden.requires_grad_()
    common = {"chunk_tokens": 7, "group": dist.group.WORLD, "kernels": PLAIN, "temperature": SHARDED_TEMPERATURE}
    values = logprobs_and_entropy(hidden, shard, labels, entropy_gradient=True, others=others(), **common)
    gradients = torch.autograd.grad((values * factors(True, NUM_OTHERS)).sum(), (hidden, shard))
    sharp, whole = sharp_inputs()
    found = [top_logprobs(sharp, whole.chunk(2)[rank], k, **common) for k in SHARDED_TOPS]
    dist.destroy_process_group()
    return [each.detach().numpy() for each in (values, *gradients, *(each for top in found for each in top))]


@pytest.mark.gpu
@pytest.mark.parametrize("fp32_logits", [False, True])
@pytest.mark.parametrize("with_main_grad", [True, False])
def test_on_a_gpu_in_bf16(lone_group: dist.ProcessGroup, with_main_grad: bool, fp32_logits: bool) -> None:
    """Against float64: logits are rounded to bf16, 2^-9 of at most 12, or summed in fp32 alone; probabilities and
    gradients once more."""
    tolerance = {"rtol": 0, "atol": 3e-5 if fp32_logits else 3e-2}
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"device": "cuda", "generator": generator}
    hidden = torch.randn(700, 256, dtype=torch.bfloat16, **options).requires_grad_()
    weight = torch.randn(10007, 256, dtype=torch.bfloat16, **options).mul_(0.1).requires_grad_()
    labels = torch.randint(0, len(weight), (700,), **options)
    others = torch.rand(700, len(weight), **options).topk(6, dim=1).indices.t().contiguous()
    others[0, ::2] = labels[::2].where(~(others == labels).any(dim=0)[::2], others[0, ::2])
    weights = torch.randn(2 + len(others), 700, **options)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    common = {"chunk_tokens": 128, "group": lone_group, "temperature": 1.25}
    of_gpu = {"kernels": vocabulary_kernels(hidden.device), "fp32_logits": fp32_logits}
    ids, top = top_logprobs(hidden, weight, 6, **of_gpu, **common)
    told = plain(hidden.detach().double(), weight.detach().double(), labels, 1.25, ids.t())[2:].t()
    torch.testing.assert_close(top.double(), told, **tolerance)
    common |= {"entropy_gradient": True, "others": others}
    wanted = logprobs_and_entropy(*exact, labels, kernels=PlainKernels(), **common)
    wanted.backward(weights.double())
    main_grad = torch.zeros(weight.shape, device="cuda") if with_main_grad else None
    assert not isinstance(of_gpu["kernels"], PlainKernels)
    got = logprobs_and_entropy(hidden, weight, labels, main_grad=main_grad, **of_gpu, **common)
    got.backward(weights)
    torch.testing.assert_close(got.double(), wanted.detach(), **tolerance)
    gradients = (hidden.grad, weight.grad if main_grad is None else main_grad)
    for gradient, tensor in zip(gradients, exact, strict=True):
        assert float((gradient.double() - tensor.grad).norm() / tensor.grad.norm()) < 1e-2
