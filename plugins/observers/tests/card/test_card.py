"""The model card, as the hub's own client reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.events import Complete, Restored, Step
from slime.observe.metrics import MetricsLog
from slime.run_dir import RunDir
from slime.types import TrackedRun
from slime_observers.card import card
from slime_observers.card.card import ModelCard
from slime_testing.plugins import check_subscriber

RUN = ["+model=glm4-tiny", "+cluster=local", "run.seed=7", "model.source=zai-org/GLM-4-tiny"]
DATA = ["eval.path=hf://HuggingFaceH4/MATH-500:test", "cluster.environment.KEY=secret"]
EVALUATED = {"eval/reward_mean": 0.25}


def finished(folder: Path, words: list[str] = RUN) -> RunDir:
    """A run directory as it is when the model is exported."""
    run = RunDir.open(folder)
    run.config.write_text(OmegaConf.to_yaml(OmegaConf.structured(examine(words).cfg)))
    with MetricsLog(run) as metrics:
        metrics(Restored(None))
        metrics(Step("sft", 1, {"train/loss": 2.0}))
        for step, values in enumerate([EVALUATED, {"rollout/reward_mean": 0.5}, {"eval/reward_mean": 0.75}]):
            metrics(Step("rl", step, values))
    run.export.mkdir()
    (run.export / "config.json").write_bytes((resolve(examine(words).cfg.model.path) / "config.json").read_bytes())
    run.close()
    return run


def test_it_is_a_subscriber(tmp_path: Path) -> None:
    check_subscriber("card", tmp_path)


def test_the_hub_reads_what_it_is_and_a_person_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import ModelCard as HubCard

    run = finished(tmp_path / "tiny", RUN + DATA)
    monkeypatch.setattr("sys.argv", ["slime", *RUN, *DATA])
    ModelCard(TrackedRun("tiny", run.path, {}))(Complete())
    read = HubCard.load(run.export / card.CARD)
    facts: dict[str, Any] = read.data.to_dict()
    assert facts == {
        "base_model": "zai-org/GLM-4-tiny",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["slime", "reinforcement-learning", "grpo"],
        "datasets": ["HuggingFaceH4/MATH-500"],
    }, "and nothing of a licence, which is not known"
    for said in (
        "| held-out reward, before and after | 0.25 -> 0.75 |",
        "| reinforcement-learning steps | 2, of 32 prompts x 8 samples a step |",
        "| reward | arithmetic |",
        "| seed | 7 |",
        "slime +model=glm4-tiny +cluster=local run.seed=7",
        "transformers 5.",
    ):
        assert said in read.text
    assert "secret" not in read.content


def test_a_checkpoint_has_the_numbers_up_to_its_step(tmp_path: Path) -> None:
    run = finished(tmp_path / "tiny")
    card.write(run.path, run.export, position={"sft_step": 1, "rl_step": 1})
    said = (run.export / card.CARD).read_text()
    assert "| reinforcement-learning steps | 1, of" in said
    assert "0.25 -> 0.25" in said


def test_a_card_that_somebody_edited_is_kept_and_another_follows_the_run(tmp_path: Path) -> None:
    run = finished(tmp_path / "tiny")
    file = run.export / card.CARD
    card.write(run.path, run.export)
    run.config.write_text(run.config.read_text().replace("seed: 7", "seed: 8"))
    card.write(run.path, run.export)
    assert "| seed | 8 |" in file.read_text()
    for edited in (file.read_text().replace("trained with", "made with"), "# mine\n", file.read_text() + "more\n"):
        file.write_text(edited)
        card.write(run.path, run.export)
        assert file.read_text() == edited
