"""What an actor does in its own process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARED = """
import sys
from slime.cluster.actors import TrainerActor
from slime.compose.compose import examine
actor = object.__new__(TrainerActor)
actor.cfg = examine(["+model=glm4-tiny", "+cluster=local"]).cfg
assert "torch" not in sys.modules
actor.prepare()
import torch
before = set(sys.modules)
from slime_megatron.train.trainer import Trainer
print(torch.cuda.is_initialized(), len(set(sys.modules) - before))
"""


@pytest.mark.slow
@pytest.mark.gpu(0)
def test_a_trainer_prepares_without_a_device() -> None:
    """On GPUs too, where an engine measures meanwhile what is free."""
    found = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "0"]
