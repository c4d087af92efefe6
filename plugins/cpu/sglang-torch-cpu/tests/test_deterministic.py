"""The operators alone; that a whole engine repeats itself is shown in the tests of slime's sampling."""

import json
import subprocess
import sys

import pytest
import torch

from sglang_torch_cpu import deterministic

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS = 64
BATCHES = (1, 2, 3, 7, 15, 16, 17, 63)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def linear(rows):
    return deterministic.mm(rows, random(384, 128))


def biased(rows):
    return deterministic.addmm(random(128), rows, random(384, 128))


def by_head(rows):
    """[rows, 3 * 128] -> [rows, 3 * 32]: every head's part times a matrix of its own."""
    heads = rows.view(-1, 3, 128).transpose(0, 1)
    return deterministic.bmm(heads, random(3, 128, 32)).transpose(0, 1).flatten(1)


OPERATORS = {
    "mm": (linear, 384),
    "bmm": (by_head, 384),
    "addmm": (biased, 384),
    "sigmoid": (deterministic.sigmoid, 8),
    "silu": (deterministic.silu, 8),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_row_is_the_same_in_every_batch(name):
    operator, width = OPERATORS[name]
    rows = random(ROWS, width)
    whole = operator(rows)
    for batch in BATCHES:
        for start in (0, ROWS - batch):
            part = slice(start, start + batch)
            assert torch.equal(operator(rows[part]), whole[part]), (batch, start)


@pytest.mark.parametrize(
    ("ours", "torchs"),
    [
        (linear, lambda rows: rows @ random(384, 128)),
        (biased, lambda rows: torch.addmm(random(128), rows, random(384, 128))),
        (by_head, lambda rows: torch.einsum("rhi,hio->rho", rows.view(-1, 3, 128), random(3, 128, 32)).flatten(1)),
        (deterministic.sigmoid, torch.sigmoid),
        (deterministic.silu, torch.nn.functional.silu),
    ],
    ids=OPERATORS,
)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_they_compute_what_torch_computes(ours, torchs, rows):
    # fp32 sums of 384 products in another order: about sqrt(384) * 2^-24 of terms of size 1
    torch.testing.assert_close(ours(random(rows, 384)), torchs(random(rows, 384)), rtol=1e-5, atol=1e-4)


def test_operands_may_be_views():
    rows = random(384, 20).t()
    assert torch.equal(
        deterministic.mm(rows, random(128, 384).t()), deterministic.mm(rows.contiguous(), random(128, 384).t())
    )
    assert torch.equal(deterministic.silu(rows), deterministic.silu(rows.contiguous()))


INTO_A_VIEW = """
import torch
from sglang_torch_cpu import deterministic
torch.set_num_threads(1)
deterministic.enable_batch_invariant_mode()
heads, weights = torch.randn(3, 64, 384), torch.randn(3, 384, 128)
def product(rows):
    torch.bmm(heads[:, :rows], weights, out=(whole := torch.empty(rows, 3, 128)).transpose(0, 1))
    return whole
print(all(torch.equal(product(rows), product(64)[:rows]) for rows in (1, 2, 7, 17)))
"""


def test_heads_are_multiplied_into_a_view_as_latent_attention_does():
    """Through torch, whose operator for that is another one than for a new tensor; its own gives other bits."""
    command = [sys.executable, "-c", INTO_A_VIEW]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "True"


SGLANGS_HASHES = """
import importlib.util, json, pathlib, sys, torch
package = importlib.util.find_spec("sglang").submodule_search_locations[0]
path = pathlib.Path(package, "kernels", "ops", "sampling", "murmur_hash.py")
spec = importlib.util.spec_from_file_location("murmur_hash", path)
spec.loader.exec_module(kernel := importlib.util.module_from_spec(spec))
seeds, positions = (torch.tensor(json.loads(values)) for values in sys.argv[1:])
print(kernel.murmur_hash32(seeds.to(torch.uint64), positions, torch.arange(70)).to(torch.int64).tolist())
"""


def test_hashes_are_those_of_sglangs_kernel(monkeypatch):
    """Triton's own interpreter runs SGLang's kernel on a CPU, in a process of its own."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    seeds, positions = [0, 1, 2**62 + 12345, 2**63 - 1], [0, 7, 511, 2**31 - 1]
    command = [sys.executable, "-c", SGLANGS_HASHES, str(seeds), str(positions)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = deterministic.murmur_hash32(torch.tensor(seeds).to(torch.uint64), torch.tensor(positions), torch.arange(70))
    assert ours.to(torch.int64).tolist() == json.loads(theirs)
