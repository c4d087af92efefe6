"""The program that measures what experts cost beside their products runs, and measures what it says."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch


def test_every_way_adds_the_gradients_of_all_experts(program: ModuleType) -> None:
    """bf16 rounds what is added to a sum, 2^-9."""
    inputs = program.Inputs(program.TINY[0], torch.device("cpu"))
    exact, names = inputs.exact(), []
    for name, way in program.ways(inputs):
        inputs.totals.zero_()
        way()
        assert (inputs.totals.double() - exact).norm() < 2**-9 * exact.norm()
        names.append(name)
    assert names == ["one by one"]
    assert len(set(inputs.sizes)) > 1, "experts have different numbers of rows"


@pytest.mark.slow
def test_rows_are_exchanged(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["experts.py", "--device", "cpu", "--tiny", "--ranks", "2"])
    program.main()
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("| 2 | 64 | 32 |")]
    assert len(lines) == 1
