"""Kernels run on the GPU where there is one, else in Triton's interpreter.

The interpreter must be chosen before Triton is imported: `test_interpreter.py` starts pytest anew for that.
"""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if not INTERPRETED:
        pytest.skip("no GPU, and not in Triton's interpreter (test_interpreter.py runs this there)")
    return torch.device("cpu")
