"""Tensors that must come to SGLang's loaders in one call: those they fuse into one parameter, and those of which they
derive another, which they would do twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from slime.config.fp8 import SCALE
from slime.weights.shared.views import Named

_DOWN_PROJECTIONS = re.compile(r"(.+)\.(?:q_a_proj|kv_a_proj_with_mqa)\.")
"""Of latent attention. A weight mapping exports the two behind one another (`slime.weights.megatron.blocks.mla`)."""


def in_one_bucket(tensors: Iterable[Named]) -> Iterator[list[Named]]:
    """The tensors in their order, in runs that must not be cut: mostly of one."""
    return (list(run) for _, run in groupby(tensors, key=lambda named: _parameter(named[0])))


def _parameter(name: str) -> str:
    """What the tensor becomes a part of: a matrix and its scales have one name here."""
    found = _DOWN_PROJECTIONS.match(name)
    return found[1] if found else name.removesuffix(SCALE)
