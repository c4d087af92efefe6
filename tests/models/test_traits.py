"""What the shipped families' blocks ask of the trainer, and by which keys their parameters learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime import plugins
from slime.config.schema import SlimeConfig
from slime.models.bridge import traits_of
from slime.models.traits import Traits, extra_losses, obstacle_to_sharing
from slime.sizes.parameters import in_force, weights_of
from slime_megatron.multi_token_prediction.loss import PredictionLoss

CONFIGS = Path(__file__).parents[2] / "plugins/models"
DSA = "glm5/tests/configs/dsa.json"
SCALE, COEFFICIENT = "train.mtp_loss_scale", "train.megatron.dsa_indexer_loss_coeff"


def config(scale: float | None, coefficient: float | None) -> SlimeConfig:
    cfg = SlimeConfig()
    cfg.train.mtp_loss_scale = scale
    cfg.train.megatron = {} if coefficient is None else {"dsa_indexer_loss_coeff": coefficient}
    return cfg


def read(name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    hf = json.loads((CONFIGS / name).read_text()) | changes
    return plugins.load().models.create(hf["model_type"]), hf


@pytest.mark.parametrize(
    ("name", "predicts", "sparse"),
    [
        ("qwen3/tests/configs/dense.json", False, False),
        ("qwen3/tests/configs/moe.json", False, False),
        ("glm4/tests/configs/dense.json", False, False),
        ("glm4/tests/configs/moe.json", True, False),
        ("glm4/tests/configs/lite.json", True, False),
        ("mimo/tests/configs/dense.json", True, False),
        ("deepseek-v3/tests/configs/tiny.json", True, False),
        ("deepseek-v3/tests/configs/sparse.json", True, True),
        ("glm5/tests/configs/dsa.json", True, True),
    ],
)
def test_bridges_state_the_blocks_that_their_keywords_bring(name: str, predicts: bool, sparse: bool) -> None:
    bridge, hf = read(name)
    keywords, traits = bridge.transformer_config(hf), traits_of(bridge, hf)
    assert bool(keywords.get("mtp_num_layers")) == predicts
    assert bool(keywords.get("dsa_indexer_topk")) == sparse
    learn_by = {trait.learns_by for trait in traits if trait.learns_by}
    assert learn_by == set([SCALE] * predicts + [COEFFICIENT] * sparse)
    assert sum(trait.recording is not None for trait in traits) == bool(keywords.get("num_moe_experts"))
    assert any(trait.contiguous for trait in traits) == sparse
    if predicts:
        bridge, hf = read(name, num_nextn_predict_layers=0)
        assert SCALE not in {trait.learns_by for trait in traits_of(bridge, hf)}


@pytest.mark.parametrize(("scale", "wanted"), [(0.3, [("mtp_loss", 0.3)]), (None, [])])
def test_a_prediction_layer_has_a_loss_while_it_learns(scale: float | None, wanted: list[tuple[str, float]]) -> None:
    found = extra_losses(config(scale, 0.1).train, traits_of(*read("glm5/tests/configs/dsa.json")))
    assert [(loss.name, coefficient) for loss, coefficient in found] == wanted


@pytest.mark.parametrize("name", ["qwen3/tests/configs/dense.json", "mimo/tests/configs/dense.json", DSA])
@pytest.mark.parametrize("scale", [None, 0.2])
def test_context_parallelism_alone_needs_whole_sequences(name: str, scale: float | None) -> None:
    train, traits = config(scale, 0.1).train, traits_of(*read(name))
    assert [obstacle_to_sharing(train, traits, cp) for cp in (1, 2)] == [None, "context parallelism"]


@pytest.mark.parametrize(
    ("needs", "scale", "obstacle"),
    [
        ({}, None, "another's block"),
        ({"shares_prompts": True}, None, None),
        ({"extra_loss": PredictionLoss, "learns_by": SCALE}, None, None),  # it is not computed
        ({"extra_loss": PredictionLoss, "learns_by": SCALE}, 0.2, "another's block"),
    ],
)
def test_a_block_that_needs_whole_sequences_is_named(
    needs: dict[str, Any], scale: float | None, obstacle: str | None
) -> None:
    assert obstacle_to_sharing(config(scale, None).train, [Traits("another's block", **needs)], 1) == obstacle


@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("coefficient", [None, 0.0, 0.1])
def test_parts_learn_by_their_keys_and_an_indexer_that_predicts_by_both(
    scale: float | None, coefficient: float | None
) -> None:
    bridge, hf = read("glm5/tests/configs/dsa.json")
    model = {**bridge.transformer_config(hf), "vocab_size": hf["vocab_size"]}
    weights = weights_of(model, bridge.weight_mapping(hf))
    keys = in_force(config(scale, coefficient).train, weights)
    assert keys == set([SCALE] * bool(scale) + [COEFFICIENT] * bool(coefficient))
    seen = set()
    for weight in weights:
        indexes, corrects = ".indexer." in weight.name, weight.name.endswith("expert_bias")
        allowed = (bool(scale) or not weight.drafts) and (bool(coefficient) or not indexes) and not corrects
        assert weight.learns(keys) == allowed, weight
        seen.add((weight.drafts, indexes))
    assert len(seen) == 4
