"""All kernel tests without a GPU: Triton's interpreter computes block by block what the GPU would.

The interpreter must be chosen before Triton is imported: this starts pytest anew.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

from slime_testing.patience import run_within


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU itself")
@pytest.mark.slow
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    root = Path(__file__).parents[2]
    files = sorted(map(str, root.glob("plugins/**/tests/**/test_kernel*.py")))
    assert len(files) > 4
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-rs", "--no-header", *files]
    run = run_within(100, command, env=environment)
    assert "skipped" not in run.stdout, run.stdout[-5000:]
