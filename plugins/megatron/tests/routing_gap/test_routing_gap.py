"""How much of a gap is routing: every score against transformers' with the same weights and the same experts, in fp32.

Sums run in another order there, which costs about 1e-6 nats a token; another expert costs more than 1e-2.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.config.schema import Role
from slime.observe.alarm import alarm
from slime.topology.engines import EngineGroup
from slime.types import TrainSample
from slime_testing.contract import EP, TP, UNEVEN
from slime_testing.models import random_model, run_config, write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import forced_experts, recorded_samples

pytest.importorskip("slime_plugin_glm4")

TOLERANCE = 1e-5
NAME, SHIFT = "routed_experts", 0.01
"""What engines record; nats that an engine is off, whatever its experts are."""
MODEL: Mapping[str, Any] = json.loads((Path(__file__).parents[3] / "models/glm4/tests/configs/moe.json").read_text())
LAYOUTS: Mapping[int, Mapping[str, Mapping[str, int]]] = {
    1: {"one rank": {}},
    2: {"tp2-ep2": {TP: 2, EP: 2}, "pp2": UNEVEN},
}
Found = dict[str, dict[str, dict[str, float]]]
"""By layout and setting: metrics of a step."""
REPLAYS, WATCHES, NEITHER = "train.routing_replay", "observe.routing", "neither"


def stepped(
    rank: Rank, folder: Path, samples: Sequence[TrainSample], layouts: Mapping[str, Mapping[str, int]]
) -> Found:
    """A step by each setting, all from the same weights. Runs in every rank."""
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    found: Found = {}
    for layout, sizes in layouts.items():
        found[layout] = {}
        for setting in (REPLAYS, WATCHES, NEITHER):
            cfg = run_config("glm4_moe", folder, dict(sizes))
            cfg.observe.logprob_alarm, cfg.run.num_steps = 1e-6, 9
            cfg.train.routing_replay, cfg.observe.routing = setting == REPLAYS, setting == WATCHES
            trainer = Trainer(cfg, *rank)
            trainer.init_weights()
            packing = {"align": trainer.packing_align, "loss_mean": cfg.algo.loss_mean}
            [batch] = pack(samples, num_dp=trainer.data_parallel_size, max_tokens=128, **packing)
            found[layout][setting] = dict(trainer.train([batch], 1, "rl"))
            rank = rank.again()
            torch.distributed.destroy_process_group()
    return found


@torch.no_grad()
def logprobs(model: torch.nn.Module, sample: TrainSample, rows: torch.Tensor) -> torch.Tensor:
    """Of the response's tokens, with these experts."""
    tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
    with forced_experts(rows, MODEL["n_routed_experts"]):
        logits = model(tokens[None]).logits[0, -count - 1 : -1]
    return logits.log_softmax(-1).gather(1, tokens[-count:, None])[:, 0]


@pytest.mark.slow
def test_routing_and_what_is_left(tmp_path: Path) -> None:
    write_checkpoint(MODEL, tmp_path)
    model, generator = random_model(MODEL).eval(), np.random.default_rng(3)
    num_layers = MODEL["num_hidden_layers"] - MODEL["first_k_dense_replace"]
    samples, apart = [], []
    for number, sample in enumerate(recorded_samples(8, MODEL["vocab_size"])):
        shape = (sample.num_tokens, num_layers, MODEL["n_routed_experts"])
        rows = generator.random(shape).argsort(axis=-1)[..., : MODEL["num_experts_per_tok"]].astype(np.uint8)
        rows[-1] = 0  # nobody computed the last token
        rows[2:4] = 0  # as if these rows had been of no use
        rows = rows * (number != 3)  # and nothing was recorded of this sample
        same = logprobs(model, sample, torch.from_numpy(rows))
        own = logprobs(model, sample, torch.zeros(rows.shape))
        engine, mask = same + SHIFT, torch.from_numpy(sample.loss_mask)
        recorded = {} if number == 3 else {NAME: rows[:-1]}
        told = sample.with_columns(rollout_logprobs=engine.numpy())
        samples.append(dataclasses.replace(told, recorded=recorded))
        pairs = ((own, same), (engine, same), (engine, own))
        apart.append(torch.stack([*((one - other).abs() for one, other in pairs), torch.ones_like(own)]) * mask)
    routing, left, with_own, num_tokens = torch.cat(apart, 1).double().sum(1).tolist()
    gaps = {"gap/own_experts": with_own / num_tokens, "gap/same_experts": left / num_tokens}
    assert gaps["gap/same_experts"] == pytest.approx(SHIFT, abs=TOLERANCE)
    wanted = {REPLAYS: gaps, WATCHES: {**gaps, "gap/routing": routing / num_tokens}, NEITHER: {}}
    differs = {REPLAYS: "gap/same_experts", WATCHES: "gap/own_experts", NEITHER: "gap/own_experts"}
    assert routing / num_tokens > 1000 * TOLERANCE, "other experts give other log-probs"
    for num_ranks, layouts in LAYOUTS.items():
        for of_rank in run_ranks(stepped, num_ranks, tmp_path, samples, layouts):
            for layout, by_setting in of_rank.items():
                for setting, values in by_setting.items():
                    told = {name: value for name, value in values.items() if name.startswith("gap/")}
                    assert told.pop("gap/num_tokens", num_tokens) == num_tokens
                    assert told == pytest.approx(wanted[setting], abs=TOLERANCE), (layout, setting)
                    gap = gaps[differs[setting]]
                    assert values["logprob_diff_mean"] == pytest.approx(gap, abs=TOLERANCE), (layout, setting)
                loss, watched = by_setting[NEITHER]["loss"], by_setting[WATCHES]["loss"]
                assert watched == loss, "what is only watched changes nothing"
                assert ("routing_replayed_share" in by_setting[WATCHES]) is False


@pytest.mark.parametrize(
    ("causes", "advice"),
    [
        ({"routing": 0.3, "same_experts": 0.1}, "set train.routing_replay=true"),
        ({"routing": 0.1, "same_experts": 0.3, "own_experts": 0.35}, "Other experts do not explain it: compare their"),
    ],
)
def test_the_alarm_names_the_larger_one(causes: dict[str, float], advice: str) -> None:
    groups = [EngineGroup("default", Role.regular, 1, 1, {}, {}, 1)]
    values = {"train/logprob_diff_mean": 0.35, **{f"gap/{name}": value for name, value in causes.items()}}
    told = str(alarm(0.2, groups, values, 7))
    assert advice in told
    assert f"other experts {causes['routing']:.4f}, all else {causes['same_experts']:.4f}" in told
