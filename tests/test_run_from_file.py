"""Whole runs that a file starts: one of a user's, and what such a run recorded of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import DEMONSTRATIONS, HELD_OUT, START_S, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MY_YAML = f"""\
model: glm4-tiny
cluster: local
run: {{name: it, num_steps: 9}}
cluster.start_timeout_s: {START_S}
sft:
  num_steps: 4
  lr_warmup_steps: 1
  path: {DEMONSTRATIONS}
eval: {{interval: 2, path: {HELD_OUT}}}
rollout:
  prompts_per_step: 4
  samples_per_prompt: 4
train.checkpoint.interval: ${{eval.interval}}
algo: {{entropy_coef: 0.01}}
"""
"""`tests.running.TINY` as a user would write it, with more steps."""


def started(folder: Path, *words: str) -> Run:
    """`slime WORDS`."""
    return Run(folder, typed=words, forked=True).start().succeed()


def test_a_file_starts_the_run_of_its_words_and_what_it_recorded_goes_on_or_begins_again(
    finished: Run, tmp_path: Path
) -> None:
    """The run of `finished` to the bit, in two starts: half of it by the file, the other half by its config.yaml."""
    (tmp_path / "my.yaml").write_text(MY_YAML)
    half = started(tmp_path, "my.yaml", "run.num_steps=2")
    assert half.losses() == [row for row in finished.losses() if row[:2] not in {("rl", 3), ("rl", 4)}]
    assert half.weights() != finished.weights()

    whole = started(tmp_path, "runs/it/config.yaml", "run.num_steps=4")
    assert whole.losses() == finished.losses()
    assert whole.weights() == finished.weights()
    assert "continues after rl 2" in whole.text()

    other = started(tmp_path, "runs/it/config.yaml", "run.name=other", "algo.entropy_coef=0.02", "run.num_steps=1")
    assert whole.weights() == finished.weights(), "that run is left alone"
    other.path = tmp_path / "runs/other"
    assert other.losses()[:4] == finished.losses()[:4]
    assert [row[:2] for row in other.losses()[4:]] == [("rl", 1)]
    assert other.losses()[4] != finished.losses()[4], "of another objective"
