"""Routing replay in the trainer: with the experts that it is told the model computes what transformers' does with the
same experts, and the same in every layout."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slime.models.traits import Traits
from slime.objective import Column, Source
from slime.types import TrainSample
from slime_megatron.mixture_of_experts.replay import DIFFERS, REPLAYED, ROUTED_EXPERTS
from slime_testing.contract import Contract
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import NUM_SAMPLES, Trained, compare, train_layouts

from .replayed import (
    TOLERANCE,
    by_sample,
    by_transformers,
    largest_difference,
    record,
    recording_of,
    replaying,
    scored,
)

FAMILIES = Path(__file__).parents[3] / "models"
CONFIGS = {
    "sigmoid": FAMILIES / "glm4/tests/configs/moe.json",  # with a multi-token prediction layer, which replays nothing
    "softmax": FAMILIES / "qwen3/tests/configs/moe.json",
    "groups": FAMILIES / "deepseek-v3/tests/configs/tiny.json",
}
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
EXPERTS = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
TP, PP, CP, EP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "expert_model"))
LAYOUTS = {
    "dp2 full recomputation": FULL,
    "dp2 recomputed experts": EXPERTS,
    "tp2-ep2": {TP: 2, EP: 2},
    "pp2 recomputed experts": {PP: 2, **EXPERTS},
    "tp2-ep2 full recomputation": {TP: 2, EP: 2, **FULL},
    "pp2-vpp2 full recomputation": {PP: 2, "virtual_pipeline_model_parallel_size": 2, **FULL},
    "cp2-ep2": {CP: 2, EP: 2},
    "cp2-ep2 recomputed experts": {CP: 2, EP: 2, **EXPERTS},
}
LAYOUTS_OF_FOUR = {
    "tp2-pp2-ep2": {TP: 2, PP: 2, EP: 2},
    "tp2-cp2-ep4": {TP: 2, CP: 2, EP: 4},
    "tp2-cp2-ep4 full recomputation": {TP: 2, CP: 2, EP: 4, **FULL},
}


@cache
def contract(name: str) -> Contract:
    return Contract(json.loads(CONFIGS[name].read_text()))


def recorded(model: Contract) -> list[TrainSample]:
    """What `train_layouts` trains on."""
    traits = [Traits("a mixture of experts", recording=recording_of(model.folder))]
    return record(recorded_samples(NUM_SAMPLES, model.hf["vocab_size"]), traits)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_experts_give_the_log_probs_of_transformers_with_the_same_experts(name: str) -> None:
    model = contract(name)
    samples = recorded(model)
    [ours] = run_ranks(scored, 1, model.family, model.folder, samples)
    for kind, replays in (("recorded", True), ("own", False)):
        theirs = by_transformers(model.folder, samples, replays=replays)
        assert largest_difference(ours[kind], theirs) <= TOLERANCE, kind
    apart = [np.abs(a - b).max() for a, b in zip(ours["recorded"], ours["own"], strict=True)]
    assert min(apart[0], apart[1]) > 0.01, "other experts give other log-probs"
    assert apart[4] == 0, "nothing was recorded of this sample"


def columns_of(rank: Rank, folder: Path, samples: list[TrainSample]) -> dict[bool, dict[str, list[np.ndarray]]]:
    """Log-probs by the passes before a step, by whether the policy replays. All models have the same weights."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train.passes import score_columns

    trainer, batch, micros = replaying(rank, "qwen3_moe", folder, samples)
    sources = (Source.policy, Source.reference, Source.teacher)
    asks: Any = SimpleNamespace(needs=[Column(source.value, source) for source in sources])
    found = {}
    for replays in (True, False):
        with cpu_stands_in_for_cuda():
            made = score_columns(
                asks, sources, trainer.model, [micros], replays=replays, weights_of=lambda source: nullcontext()
            )
        found[replays] = {name: by_sample(batch, of_steps[0]) for name, of_steps in made.items()}
    return found


def test_reference_and_teacher_choose_experts_themselves_where_the_policy_replays(tmp_path: Path) -> None:
    hf = json.loads(CONFIGS["softmax"].read_text()) | {"num_hidden_layers": 2}
    write_checkpoint(hf, tmp_path)
    traits = [Traits("a mixture of experts", recording=recording_of(tmp_path))]
    samples = record(recorded_samples(3, hf["vocab_size"]), traits)
    [found] = run_ranks(columns_of, 1, tmp_path, samples)
    told, own = (by_transformers(tmp_path, samples, replays=replays) for replays in (True, False))
    assert largest_difference(told, own) > 0.01, "other experts give other log-probs"
    for replays, wanted in ((True, told), (False, own)):
        assert largest_difference(found[replays]["policy"], wanted) <= TOLERANCE
        assert largest_difference(found[replays]["reference"], own) <= TOLERANCE
        assert largest_difference(found[replays]["teacher"], own) <= TOLERANCE


@cache
def one_rank(name: str) -> Trained:
    model = contract(name)
    [results] = run_ranks(train_layouts, 1, model.family, model.folder, {"one rank": {}}, record)
    return results["one rank"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "layouts"), [(2, LAYOUTS), (4, LAYOUTS_OF_FOUR)])
def test_every_layout_replays_what_one_rank_replays(num_ranks: int, layouts: dict[str, dict[str, Any]]) -> None:
    model = contract("sigmoid")
    results = run_ranks(train_layouts, num_ranks, model.family, model.folder, layouts, record, timeout_s=110)
    for layout in layouts:
        compare(layout, [result[layout] for result in results], one_rank("sigmoid"))
    history = one_rank("sigmoid").history
    samples = recorded(model)
    known = sum(int(x.recorded[ROUTED_EXPERTS].any(axis=(1, 2)).sum()) for x in samples if x.recorded)
    share = known / sum(x.num_tokens for x in samples)
    assert all(values[REPLAYED] == pytest.approx(share, abs=1e-6) for values in history)
    assert all(0.1 < values[DIFFERS] < values[REPLAYED] for values in history)
    losses = [values["loss"] for values in contract("sigmoid").one_rank.history]
    assert losses != [values["loss"] for values in history], "other experts give another loss"
