"""An engine with `model.batch_invariant` refuses mixtures of experts that it would compute by operators of SGLang."""

from __future__ import annotations

import os
import sys

import pytest

from slime_sglang.engine.invariant import WANTED
from slime_testing.patience import run_within

CODE = """
import sglang_torch_cpu
from sglang.srt.plugins.hook_registry import HookRegistry
from slime_sglang.engine import invariant

invariant.install()
HookRegistry.apply_hooks()
from sglang.srt.layers.moe.topk import TopK

try:
    TopK.forward(object(), None, None)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
def test_other_mixtures_of_experts_end_the_engine(wanted: bool) -> None:
    environment = os.environ | {WANTED: str(int(wanted)), "OMP_NUM_THREADS": "1"}
    run = run_within(50, [sys.executable, "-c", CODE], env=environment)
    assert run.stdout.startswith(
        "SlimeError model.batch_invariant: does not hold for this model" if wanted else "Attrib"
    )
