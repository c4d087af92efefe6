"""What layers read of a pack."""

from itertools import accumulate, pairwise

import pytest
import torch

from slime_megatron.train.model.packed.sequences import PackedSequences

LENGTHS = [9, 5, 1, 12, 20, 4, 25]
PREFIXES = [(), (range(6),), (range(6), range(9, 12)), (range(6),), (), (range(27, 44),), ()]
BORDERS = [0, *accumulate(LENGTHS)]
CPU = torch.device("cpu")


def test_what_layers_derive_of_a_pack_is_made_once_for_all_passes() -> None:
    packed, made = PackedSequences.of(BORDERS, 1, 0, CPU), []

    def sizes(given: PackedSequences) -> list[int]:
        made.append(given)
        return [*given.lengths]

    first, second = packed.for_one_pass(), packed.for_one_pass()
    assert first.derived(sizes) is second.derived(sizes)
    assert len(made) == 1
    assert PackedSequences.of([0, 4], 1, 0, CPU).derived(sizes) == [4]


def test_sequences_that_context_parallel_ranks_cannot_halve_are_refused() -> None:
    with pytest.raises(AssertionError, match="multiples of 2"):
        PackedSequences.of([0, 8, 14], 2, 0, CPU)


def test_positions_and_the_longest_sequence_count_what_is_shared() -> None:
    packed = PackedSequences.of(BORDERS, 1, 0, CPU, prefixes=PREFIXES)
    starts = [0, 6, 9, 6, 0, 17, 0]
    wanted = [torch.arange(end - begin) + start for (begin, end), start in zip(pairwise(BORDERS), starts, strict=True)]
    assert packed.positions.tolist() == torch.cat(wanted).tolist()
    assert (packed.max_seqlen_q, packed.max_seqlen_kv) == (25, 25)
    assert PackedSequences.of([0, 5, 9], 1, 0, CPU, prefixes=[(), (range(3),)]).max_seqlen_kv == 7


def test_ranks_that_share_a_pack_cannot_share_prompts() -> None:
    with pytest.raises(AssertionError, match="on one rank"):
        PackedSequences.of([0, 8, 16], 2, 0, CPU, prefixes=[(), (range(4),)])
