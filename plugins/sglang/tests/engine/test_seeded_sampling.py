"""The draw with a seed, at the places where SGLang's own goes wrong."""

import os
import sys
from functools import partial

import pytest
import torch

from sglang_torch_cpu.deterministic import murmur_hash32
from slime_sglang.engine.seeded_sampling import below_one
from slime_testing.patience import run_within

SEED, POSITION, COLUMN = 1, 36420, 317
"""Found by inverting MurmurHash3: their hash is 2^32 - 1."""


def test_no_hash_is_the_largest_and_the_others_are_as_they_were():
    seeds, positions, columns = torch.tensor([SEED, 7]), torch.tensor([POSITION, 9]), torch.arange(512)
    theirs = murmur_hash32(seeds, positions, columns).to(torch.int64)
    ours = partial(below_one, murmur_hash32)(seeds, positions, columns)
    assert theirs[0, COLUMN] == 2**32 - 1
    changed = (ours != theirs).nonzero().tolist()
    assert changed == [[0, COLUMN]]
    assert ours[0, COLUMN] == 2**32 - 2


def test_positions_of_padding_are_left_out():
    seeds, columns = torch.tensor([1, 7]), torch.arange(16)
    hashed = partial(below_one, murmur_hash32)(seeds, torch.tensor([3, 9, 0, 0]), columns)
    assert torch.equal(hashed, murmur_hash32(seeds, torch.tensor([3, 9]), columns).to(torch.int64))


DRAW = """
import torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.layers.sampler import multinomial_with_seed
logprobs = torch.full((1, 512), -60.0)
logprobs[0, 0] = 0.0
print(multinomial_with_seed(logprobs, torch.tensor([{}]), torch.tensor([{}])).item())
"""


@pytest.mark.slow
def test_sglang_draws_the_likely_token_at_the_largest_hash():
    """As in an engine on GPUs, with SGLang's own kernel in Triton's interpreter: unmended it draws the token 317, of
    log-prob -60, where token 0 has 0."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TORCHDYNAMO_DISABLE": "1", "SGLANG_PLUGINS": "slime_seeds"}
    environment |= {"SLIME_ENGINE_SCRATCH": "engine"}
    command = [sys.executable, "-c", DRAW.format(SEED, POSITION)]
    ended = run_within(200, command, env=environment)
    assert ended.stdout.split()[-1] == "0"
