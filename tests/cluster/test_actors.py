"""What an actor does in its own process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slime.cluster.actors import EngineActor, TrainerActor
from slime.cluster.copy_keeper import Copying
from slime_testing.patience import Patience

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


class Memory:
    """Stands for a server, which as SGLang does fails to resume what it has not released."""

    def __init__(self) -> None:
        self.held = {"weights", "kv_cache"}

    def release_memory(self, tags: Sequence[str]) -> None:
        self.held -= {*tags}

    def resume_memory(self, tags: Sequence[str]) -> None:
        assert not self.held & {*tags}
        self.held |= {*tags}


def test_an_engine_releases_and_resumes_what_it_has_not_yet() -> None:
    """Who asks may have died before it was answered."""
    actor: Any = object.__new__(EngineActor)
    actor.process, actor._released = Memory(), set()
    actor.resume_memory("weights")
    actor.release_memory("kv_cache")
    actor.release_memory("kv_cache", "weights")
    assert actor.process.held == set()
    actor.resume_memory("weights")
    actor.resume_memory("weights", "kv_cache")
    assert actor.process.held == {"weights", "kv_cache"}


class Writes:
    """Files that a thread of a rank writes, until it is told that they are there."""

    is_done = False

    def __init__(self) -> None:
        self.written = threading.Event()

    def wait(self) -> dict[str, Any]:
        assert self.written.wait(60)
        return {}


def test_a_rank_that_writes_a_copy_is_not_at_rest(tmp_path: Path) -> None:
    """Nor is one that writes a checkpoint: another driver may not make a trainer in its place, whose process groups end
    those that the thread needs."""
    actor: Any = object.__new__(TrainerActor)
    actor.saving = actor.copying = None
    assert actor.is_at_rest()
    writes: Any = Writes()
    actor.copying = Copying(writes, tmp_path, rank=1, beside=None)
    assert not actor.is_at_rest()
    writes.written.set()
    assert Patience(30, list).wait_for(actor.is_at_rest)
    assert actor.copying.fault == ""
    actor.saving = writes
    assert not actor.is_at_rest()
