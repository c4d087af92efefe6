"""Rotary embeddings in either order of the rotated dimensions, in float64."""

import pytest
import torch
from torch import Tensor

from slime_megatron.transformer.rotary.module import RotaryTable, plain_rotate


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotated_products_depend_on_the_distance_alone(interleaved: bool) -> None:
    positions, frequencies = torch.arange(9, dtype=torch.float64), torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)
    angles = positions[:, None] * frequencies
    table = RotaryTable(angles.cos(), angles.sin())
    query, key = (plain_rotate(random(6, seed=seed).expand(9, 1, 6), *table, interleaved)[:, 0] for seed in (6, 7))
    products = query @ key.t()
    for offset in range(-8, 9):
        diagonal = products.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-12, atol=1e-12)
    assert (products[0, 0] - products[0, 5]).abs() > 1e-3


def test_orders_of_rotated_dimensions_are_permutations_of_one_another() -> None:
    angles, x = random(4, 3, seed=8), random(4, 2, 6, seed=9)
    table = RotaryTable(angles.cos(), angles.sin())
    assert torch.equal(halves(plain_rotate(x, *table, True)), plain_rotate(halves(x), *table, False))


def halves(x: Tensor) -> Tensor:
    """Neighbouring entries, put half the size apart."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


def test_entries_that_no_angle_turns_stay() -> None:
    angles, x = random(4, 2, seed=8), random(4, 2, 6, seed=9)
    turned = plain_rotate(x, angles.cos(), angles.sin(), True)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert not torch.equal(turned[..., :4], x[..., :4])


def test_a_part_of_a_table_turns_a_part_of_the_tokens() -> None:
    angles, x = random(4, 3, seed=8), random(4, 2, 6, seed=9)
    table = RotaryTable(angles.cos(), angles.sin())
    assert torch.equal(plain_rotate(x[1:3], *table.part(1, 3), True), plain_rotate(x, *table, True)[1:3])
