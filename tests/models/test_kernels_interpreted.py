"""All kernel tests without a GPU: Triton's interpreter computes block by block what the GPU would.

The interpreter must be chosen before Triton is imported: this starts pytest anew.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU itself")
def test_kernels_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    tests = Path(__file__).parents[1]
    weights = [tests / "weights/shared/test_kernels.py", tests / "weights/shared/test_fp8_kernel.py"]
    files = [str(path) for path in (*sorted((tests / "models").rglob("test_kernels.py")), *weights)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-rs", "--no-header", *files]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert "skipped" not in run.stdout, run.stdout[-5000:]
