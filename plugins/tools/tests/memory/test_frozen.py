"""What `slime plan` says of engines that have models of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.compose.compose import examine
from slime.config.paths import resolve

RUN = ["+model=glm4-9b", "+cluster=h100x8-split", "cluster.num_trainers=4", "rollout.engines.judge.devices=2"]


@pytest.fixture
def judge(tmp_path: Path) -> Path:
    """Qwen3-4B's config, and a file in the place of its weights, which a plan does not open."""
    config = resolve("pkg://slime_plugin_qwen3/assets/Qwen3-4B") / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    (tmp_path / "model.safetensors").touch()
    return tmp_path


def test_its_own_model_is_counted_on_its_own_devices(judge: Path) -> None:
    plan = plan_of(*RUN, f"rollout.engines.judge.model={judge}")
    [place] = [place for place in plan.devices if place.group and place.group.name == "judge"]
    (weights,) = set(place.table.rows["engine's weights"].values())
    assert weights == 2 * 4_022_468_096, "Qwen3-4B's parameters, in bf16"
    assert "arriving weights" not in place.table.rows, "nobody publishes to it"
    assert plan.frozen_engines["judge"].pool_tokens != plan.engines["default"].pool_tokens
    assert list(plan.engines) == ["default"]


def test_a_reward_model_has_no_output_layer(judge: Path) -> None:
    config = json.loads((judge / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "reward"}}
    (judge / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    plan = plan_of(*RUN, f"rollout.engines.judge.model={judge}")
    [place] = [place for place in plan.devices if place.group and place.group.name == "judge"]
    assert {*place.table.rows["engine's weights"].values()} == {2 * 4_022_468_096}, "as where both layers are one"


def test_a_model_with_several_labels_is_no_reward_model(judge: Path) -> None:
    config = json.loads((judge / "config.json").read_text())
    for labels, count in (({"id2label": {"0": "help", "1": "truth", "2": "style"}}, 3), ({}, 2)):
        own = {"architectures": ["Qwen3ForSequenceClassification"], **labels}
        (judge / "config.json").write_text(json.dumps({**config, **own}))
        [problem] = examine([*RUN, f"rollout.engines.judge.model={judge}"]).problems
        assert str(problem) == (
            f"rollout.engines.judge.model: Qwen3ForSequenceClassification has {count} labels, and a reward is one "
            "number. Name a reward model with one (id2label of config.json)."
        )


def test_a_judge_that_does_not_fit_is_named(judge: Path) -> None:
    words = ["rollout.engines.judge.devices=1", "+rollout.engines.judge.sglang.mem_fraction_static=0.05"]
    composed = examine([*RUN, f"rollout.engines.judge.model={judge}", "rollout.engines.default.devices=2", *words])
    [problem] = composed.problems
    assert problem.where == "rollout.engines.judge.sglang.mem_fraction_static"
    assert problem.what.startswith("leaves room for 0 tokens beside 7.5 GiB of weights")


def test_a_model_that_no_plugin_knows_is_not_counted_and_that_is_said(judge: Path) -> None:
    config = json.loads((judge / "config.json").read_text())
    for other in ({"model_type": "mystery"}, {"quantization_config": {"quant_method": "awq"}}):
        (judge / "config.json").write_text(json.dumps({**config, **other}))
        composed = examine([*RUN, f"rollout.engines.judge.model={judge}"])
        assert composed.problems == []
        [warning] = [each for each in composed.warnings if each.where == "rollout.engines.judge.model"]
        assert "the memory of engine group 'judge' is not counted" in warning.what
        assert composed.memory


def test_weights_that_are_not_there_are_missed(judge: Path) -> None:
    (judge / "model.safetensors").unlink()
    composed = examine([*RUN, f"rollout.engines.judge.model={judge}"])
    [problem] = composed.problems
    assert str(problem).startswith(f"rollout.engines.judge.model: there are no *.safetensors files in {judge}")
