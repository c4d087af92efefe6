"""A whole run whose engine is two. That no placement or transport changes the result is shown by the killed run of
test_run.py, too; an engine over two hosts is in test_run_engines_killed.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import NO_CHECKPOINTS, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.usefixtures("_mooncake")
def test_a_prefill_and_a_decode_engine_draw_what_one_engine_draws(finished: Run, tmp_path: Path) -> None:
    """Losses and weights rest on every sample and its log-probs."""
    run = Run(tmp_path, cluster="local-pd", settings={"eval.interval": 1000, **NO_CHECKPOINTS}).start().succeed()
    assert run.weights() == finished.weights()
    assert run.losses() == finished.losses()
    prefill, decode = (run.path / f"logs/engine-{index}.log" for index in range(2))
    assert "Prefill batch" in prefill.read_text()
    assert "Decode batch" in decode.read_text()
    assert "Decode batch" not in prefill.read_text()
