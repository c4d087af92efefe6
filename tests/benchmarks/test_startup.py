"""The run that the start-up benchmark times is one that slime accepts."""

from __future__ import annotations

import runpy
from pathlib import Path

from slime.compose.compose import compose

BENCHMARK = Path(__file__).parents[2] / "benchmarks/startup.py"


def test_the_shortened_run_is_one_step_of_each_stage() -> None:
    of_benchmark = runpy.run_path(str(BENCHMARK))
    cfg = compose([*of_benchmark["RUN"], *of_benchmark["SHORT"]])
    assert cfg.sft.num_steps == cfg.run.num_steps == 1
