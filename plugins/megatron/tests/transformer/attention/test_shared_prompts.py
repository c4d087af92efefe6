"""Attention of sequences that share what they begin with, against each of them whole, in float64."""

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from slime_megatron.transformer.attention.causal import Attend, Segments, by_sequence, causal_attention
from slime_megatron.transformer.attention.shared_prompts import SharedPrompts

from .test_causal import SCALE, inputs, with_gradients

LENGTHS = [9, 5, 1, 12, 20, 4, 25]
PREFIXES = [
    (),
    (range(6),),  # of the first sequence
    (range(6), range(9, 13)),  # of the second, and of the first through it
    (range(6), range(9, 13), range(14, 15)),  # of all three
    (),
    (range(27, 44),),
    (),
]
BORDERS = [0, *accumulate(LENGTHS)]
CPU = torch.device("cpu")


def rows_of(number: int) -> Tensor:
    ranges = [*PREFIXES[number], range(BORDERS[number], BORDERS[number + 1])]
    return torch.tensor([row for rows in ranges for row in rows])


def whole(query: Tensor, key: Tensor, value: Tensor, attend: Attend = by_sequence) -> Tensor:
    """Every sequence by itself, of whose rows its own ones are taken."""
    found = []
    for number, length in enumerate(LENGTHS):
        rows = rows_of(number)
        segments = Segments.of([len(rows)], [len(rows)], CPU)
        found.append(attend(query[rows], key[rows], value[rows], segments, SCALE)[-length:])
    return torch.cat(found)


def of_any_length(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """A kernel for sequences of any lengths, by their borders."""
    return by_sequence(query, key, value, segments, scale)


@pytest.mark.parametrize("kernel", [by_sequence, of_any_length])
@pytest.mark.parametrize(("groups", "value_size"), [(4, 8), (2, 8), (4, 6)])
def test_equals_whole_sequences_with_gradients(kernel: Attend, groups: int, value_size: int) -> None:
    tensors = [tensor[:76] for tensor in inputs(groups=groups, value_size=value_size)]
    shared = SharedPrompts(LENGTHS, PREFIXES, CPU)
    got = with_gradients(lambda q, k, v: shared.attend(kernel, q, k, v, SCALE), tensors)
    torch.testing.assert_close(got, with_gradients(whole, tensors), rtol=1e-12, atol=1e-12)


def test_a_window_reaches_back_into_the_shared_prompt() -> None:
    windowed = causal_attention(CPU, torch.float64, 7)
    tensors = [tensor[:76] for tensor in inputs()]
    shared = SharedPrompts(LENGTHS, PREFIXES, CPU)
    got = with_gradients(lambda q, k, v: shared.attend(windowed, q, k, v, SCALE), tensors)
    wanted = with_gradients(lambda q, k, v: whole(q, k, v, windowed), tensors)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
