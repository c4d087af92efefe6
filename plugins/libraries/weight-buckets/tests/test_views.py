"""Where tensors lie in a block of memory."""

from itertools import pairwise

import torch

from weight_buckets.views import aligned, packed


def test_places_are_aligned_and_in_order() -> None:
    forms = [((3, 5), torch.bfloat16), ((7,), torch.uint8), ((0,), torch.float32), ((2, 2), torch.float64)]
    places = packed(forms)
    assert [place.end - place.start for place in places] == [30, 7, 0, 32]
    assert all(place.start % 64 == 0 for place in places)
    assert all(aligned(one.end) == other.start for one, other in pairwise(places))
