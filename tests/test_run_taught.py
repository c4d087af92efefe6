"""A whole run with a teacher, which another run has left: it continues bit for bit, and with no other teacher."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import NO_STOP, Run, end_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def _no_strays() -> Iterator[None]:
    yield
    end_all()


def test_a_run_continues_bit_for_bit_with_the_same_teacher_alone(finished: Run, tmp_path: Path) -> None:
    teacher = shutil.copytree(finished.path / "export", tmp_path / "teacher")
    settings = {"algo": "opd", "algo.teacher.path": teacher, "eval.path": "null", **NO_STOP}
    run = Run(tmp_path, settings=settings).start().succeed()
    taught = [row for row in run.rows("rl") if "train/teacher_kl" in row]
    assert [row["step"] for row in taught] == [1, 2, 3, 4]
    assert all(math.isfinite(row["train/teacher_kl"]) and row["train/grad_norm"] > 0 for row in taught)
    losses, weights = run.losses(), run.weights()

    newest = sorted((run.path / "checkpoints").iterdir())[-1]
    for folder in (newest, run.path / "export"):
        shutil.rmtree(folder)
    run.settings = {**settings, "algo.teacher.path": teacher.rename(tmp_path / "moved")}
    run.start().succeed()
    assert run.losses() == losses
    assert run.weights() == weights

    shutil.rmtree(newest)
    [file] = (tmp_path / "moved").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run.start().finish() == 2
    assert "is not the file that the run's checkpoint was taken with" in run.text().splitlines()[-1]
