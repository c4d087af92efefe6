"""The shipped recipes: each composes without a problem; the proven ones have the numbers that their users proved."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.algo.policy_gradient import OLD_LOGPROBS
from slime.algo.stages import objective_of
from slime.compose.compose import Composed, examine
from slime.compose.groups import scan
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import AlgoConfig, Init, Placement, Role
from slime.layout import read_grid, split_layers
from slime.objective import LossInputs
from slime.plan.document import document
from slime.plugins import load
from slime.topology.server_fields import requests_per_rank
from slime.topology.topology import read_topology
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS

RECIPES = [name for name in scan(load()).names("recipe") if name != "none"]
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
CPU_ADAM = {"optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True, "use_precision_aware_optimizer": True}
DEEPEP = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
ADAM = {"lr": 1e-6, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.98}
DP_ATTENTION = {"enable_dp_attention": True}
WIDE = {**DP_ATTENTION, "enable_dp_lm_head": True, "moe_dense_tp_size": 1}
EAGLE = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


TIGHT = {f"{model}@h100x256": ["memory a device"] for model in ("glm5", "glm5.1")}
"""Layouts that users run and whose prediction leaves less than its error."""
CLIPS_TOKENS = (
    *(f"deepseek-{model}@h100x128" for model in ("r1", "v3", "v3.2")),
    *(f"{model}@h100x64" for model in ("glm4.5", "glm4.5-355b-a32b", "glm4.5-fp8")),
)
"""Mixtures of experts whose users take four optimizer steps a rollout under the clip of single tokens."""
WARNINGS = TIGHT | {recipe: ["algo.name=grpo"] for recipe in CLIPS_TOKENS}


@functools.cache
def plan(recipe: str, *more: str) -> Composed:
    """The plan of a recipe's own model and cluster. Whoever reads it leaves it as it is: others read it as well."""
    name, _, variant = recipe.partition("+")
    model, _, cluster = name.partition("@")
    chosen = [f"recipe={recipe}"] if variant else []
    return examine([f"+model={model}", f"+cluster={cluster or 'local'}", *chosen, *more])


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_right(recipe: str) -> None:
    if recipe in ("glm5-tiny", "deepseek-v3.2-tiny"):
        assert examine([f"+model={recipe}", "+cluster=h200x1"]).problems == []  # no CPU serves sparse attention
        return
    composed = plan(recipe)
    assert composed.problems == []
    assert [warning.where for warning in composed.warnings] == WARNINGS.get(recipe, [])
    assert composed.choices["recipe"] == recipe


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_written_config_of_a_recipe_plans_the_same_run(recipe: str, tmp_path: Path) -> None:
    """Whoever starts from the config.yaml of a run starts that run."""
    served = recipe not in ("glm5-tiny", "deepseek-v3.2-tiny")
    own = plan(recipe) if served else examine([f"+model={recipe}", "+cluster=h200x1"])
    file = tmp_path / "config.yaml"
    file.write_text(own.yaml)
    again, plugins = examine([str(file)]), load()
    assert again.notes == [f"{file} is taken unchanged; the run is '{own.cfg.run.name}' in runs"]
    documents = [document(composed, plugins) for composed in (own, again)]
    for each in documents:
        each.pop("run")
        each["summary"].pop("recipe")
    assert documents[0] == documents[1]


def test_what_is_called_no_trial_has_published_weights() -> None:
    """And only a trial, or a tiny model, is cut or drawn at random."""
    for recipe in RECIPES:
        model = recipe.partition("@")[0]
        config = plan(recipe).cfg.model
        published = config.init is Init.checkpoint and config.source is not None and config.num_layers is None
        assert published != model.endswith(("-tiny", "-trial"))


def layout(composed: Composed) -> tuple[tuple[int, ...], list[int]]:
    """TP, PP, CP, EP, ETP, and the layers of each stage."""
    cfg = composed.cfg
    grid = read_grid(cfg.cluster.num_trainers, cfg.train.megatron)
    hf = read_hf_config(config_folder(cfg.model))
    stages = split_layers(hf["num_hidden_layers"], grid, cfg.train.megatron)
    return (grid.tp, grid.pp, grid.cp, grid.ep, grid.etp), [len(layers) for (layers,) in stages]


@pytest.mark.parametrize(
    ("recipe", "sizes", "stages", "tokens_a_gpu", "megatron"),
    [
        ("glm5.2@h100x256", (4, 8, 8, 32, 1), [14, *[8] * 6, 16], 8192, FULL),
        ("deepseek-r1@h100x128", (8, 4, 4, 32, 1), [16, 16, 16, 13], 16384, FULL | DEEPEP),
        ("deepseek-v3@h100x128", (8, 4, 4, 32, 1), [16, 16, 16, 13], 16384, FULL | DEEPEP),
        ("deepseek-v3.2@h100x128", (8, 4, 4, 32, 1), [16, 16, 16, 13], 16384, FULL | DEEPEP),
        ("glm4.5@h100x64", (8, 4, 2, 16, 1), [23] * 4, 16384, FULL | DEEPEP),
        ("glm4.6@h100x64", (8, 4, 2, 16, 1), [23] * 4, 16384, FULL | DEEPEP),
        ("glm4.7@h100x64", (8, 4, 2, 16, 1), [23] * 4, 16384, FULL | DEEPEP),
        ("glm4.7-flash@h100x8", (1, 1, 1, 8, 1), [47], 8192, FULL),
        ("glm4.7-flash@h100x16", (4, 2, 2, 8, 1), [24, 23], None, {}),
        ("glm4.7-flash@h100x24", (1, 1, 1, 8, 1), [47], None, {}),
        ("glm4.7-flash@h100x8+script", (2, 2, 2, 4, 1), [24, 23], 32768, FULL | DEEPEP),
        ("glm4.7-flash@h100x16+script", (2, 2, 2, 8, 1), [24, 23], 32768, FULL | DEEPEP),
        ("glm4-9b@h100x8", (2, 1, 2, 1, 2), [40], 4608, FULL),
        ("glm4-9b@h100x8-split+script", (2, 1, 2, 1, 2), [40], 4608, FULL),
        ("glm-4-32b@h100x8", (2, 2, 1, 1, 2), [31, 30], 18432, FULL),
        ("glm5.1@h100x256", (4, 4, 2, 32, 1), [20, 20, 20, 18], 16384, FULL),
        ("qwen3-235b-a22b@h100x128-split", (4, 4, 2, 16, 1), [24, 24, 24, 22], None, {}),
        ("qwen3-30b-a3b@h100x8", (4, 1, 1, 8, 1), [48], 20480, {}),
        ("qwen3-4b@h100x8", (2, 1, 1, 1, 2), [36], 9216, {}),
        ("mimo-7b-rl@h100x8", (2, 1, 1, 1, 2), [36], 9216, {}),
    ],
)
def test_trainers(
    recipe: str, sizes: tuple[int, ...], stages: list[int], tokens_a_gpu: int | None, megatron: dict[str, Any]
) -> None:
    composed = plan(recipe)
    assert layout(composed) == (sizes, stages)
    train = composed.cfg.train
    if tokens_a_gpu:
        assert train.max_tokens_per_micro_batch == tokens_a_gpu * sizes[2]
    assert {key: train.megatron[key] for key in megatron} == megatron
    assert {key: train.optimizer[key] for key in ADAM} == ADAM
    assert train.optimizer["lr"] == 1e-6
    assert train.lr_decay.name == "constant"


@pytest.mark.parametrize("recipe", ["glm5.2@h100x256", "deepseek-r1@h100x128", "glm4.5@h100x64", "glm4.7-flash@h100x8"])
def test_adam_on_the_cpu(recipe: str) -> None:
    optimizer = plan(recipe).cfg.train.optimizer
    assert {key: optimizer[key] for key in CPU_ADAM} == CPU_ADAM


def test_dispatch_in_training_is_alltoall_where_it_is_not_deepep() -> None:
    for recipe in ("glm5.2@h100x256", "glm4.7-flash@h100x8"):
        assert plan(recipe).cfg.train.megatron["moe_token_dispatcher_type"] == "alltoall"


@pytest.mark.parametrize(
    ("recipe", "groups"),
    [
        (
            "glm5.2@h100x256",
            [
                (Role.prefill, 1, 64, {"deepep_mode": "auto", "max_running_requests": 512}),
                (
                    Role.decode,
                    3,
                    64,
                    {
                        "deepep_mode": "low_latency",
                        "moe_runner_backend": "deep_gemm",
                        "cuda_graph_max_bs_decode": 12,
                        "max_running_requests": 768,
                    },
                ),
            ],
        ),
        (
            "deepseek-r1@h100x128",
            [(Role.regular, 2, 64, {**WIDE, "dp_size": 8, "ep_size": 64, "deepep_mode": "auto"})],
        ),
        ("glm4.5@h100x64", [(Role.regular, 2, 32, {**DP_ATTENTION, "dp_size": 4})]),
        ("glm4.7@h100x64", [(Role.regular, 2, 32, {**WIDE, "dp_size": 4, "ep_size": 32})]),
        (
            "glm4.5-fp8@h100x64",
            [
                (
                    Role.regular,
                    2,
                    32,
                    {
                        **WIDE,
                        "dp_size": 32,
                        "ep_size": 32,
                        "moe_a2a_backend": "deepep",
                        "deepep_mode": "auto",
                        "disable_radix_cache": True,
                        "cuda_graph_bs_decode": [1, 2, 4, *range(8, 129, 8)],
                    },
                )
            ],
        ),
        (
            "glm4.7-flash@h100x8",
            [(Role.regular, 1, 8, {**WIDE, "dp_size": 8, "cuda_graph_max_bs_decode": 16, "max_running_requests": 64})],
        ),
        ("glm4-9b@h100x8", [(Role.regular, 4, 2, {})]),
        ("glm4-9b@h100x8-split", [(Role.regular, 2, 2, {})]),
    ],
)
def test_engines(recipe: str, groups: list[tuple[Role, int, int, dict[str, Any]]]) -> None:
    found = plan(recipe).topology.groups
    assert [(group.role, group.num_engines, group.devices_per_engine) for group in found] == [g[:3] for g in groups]
    for group, (_, _, size, fields) in zip(found, groups, strict=True):
        assert {key: group.sglang.get(key) for key in fields} == fields
        assert group.sglang["tp_size"] == size


def test_sparse_attention_of_glm5_2() -> None:
    for group in plan("glm5.2@h100x256").topology.groups:
        expected = {
            **WIDE,
            "dp_size": 64,
            "ep_size": 64,
            "kv_cache_dtype": "fp8_e4m3",
            "dsa_decode_backend": "flashmla_kv",
            "dsa_prefill_backend": "flashmla_sparse",
            "moe_a2a_backend": "deepep",
            "disaggregation_transfer_backend": "mooncake",
            "watchdog_timeout": 3600,
        }
        assert {key: group.sglang[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("recipe", "numbers"),
    [
        ("glm5.2@h100x256", (4, 1, 5)),
        ("deepseek-r1@h100x128", (3, 1, 4)),
        ("glm4.5@h100x64+script", (2, 1, 3)),
        ("glm4.7@h100x64", (3, 1, 4)),
        ("glm4.7-flash@h100x8", (2, 1, 3)),
        ("glm4.7-flash@h100x16+script", (3, 1, 4)),
    ],
)
def test_speculation(recipe: str, numbers: tuple[int, ...]) -> None:
    for group in plan(recipe).topology.groups:
        assert group.sglang["speculative_algorithm"] == "EAGLE"
        assert tuple(group.sglang[key] for key in EAGLE) == numbers


def test_graphs_of_chosen_sizes_cover_every_request() -> None:
    """Beyond the largest, SGLang launches every kernel of a step by itself."""
    chosen = [
        (name, group)
        for name in RECIPES
        if "@h" in name and (topology := plan(name).topology)
        for group in topology.groups
        if group.sglang.get("cuda_graph_bs_decode")
    ]
    assert chosen
    assert [name for name, group in chosen if requests_per_rank(group) < -(-group.most_requests // group.dp)] == []


def gradients(algo: AlgoConfig, log_weights: Sequence[float]) -> list[float]:
    """Of the policy loss to each token's log-prob, of current tokens with advantage 1 which count 1 in the loss.

    Args:
        log_weights: log-prob of the trainer minus the engine's.
    """
    logprobs = torch.full([len(log_weights)], -1.0, requires_grad=True)
    one = torch.ones(len(log_weights))
    columns = {
        ADVANTAGES: one,
        ROLLOUT_LOGPROBS: logprobs.detach() - torch.tensor(log_weights),
        IS_CURRENT: one,
        OLD_LOGPROBS: logprobs.detach(),
    }
    scores = torch.stack([logprobs, torch.zeros_like(logprobs)])
    terms = objective_of(algo).loss(scores, LossInputs(one, one, columns, sum_by_sequence=torch.sum))
    (gradient,) = torch.autograd.grad(terms.loss, logprobs)
    return [float(value) for value in gradient]


def test_glm5_2_corrects_every_token_from_a_half_to_two() -> None:
    """Its engines are in FP8, so a token of the very weights that are trained is weighed too."""
    log_weights = [-2.0, -0.3, 0.0, 0.4, 3.0]
    wanted = [-min(max(math.exp(value), 0.5), 2.0) for value in log_weights]
    assert gradients(plan("glm5.2@h100x256").cfg.algo, log_weights) == pytest.approx(wanted, rel=1e-6)
    assert gradients(plan("glm4-9b@h100x8").cfg.algo, log_weights) == [-1.0] * 5


@pytest.mark.parametrize("recipe", [name for name in RECIPES if "@h100" in name])
def test_mixtures_of_experts_and_fp8_engines_correct_all_tokens(recipe: str) -> None:
    cfg = plan(recipe).cfg
    hf = read_hf_config(config_folder(cfg.model))
    has_experts = any("experts" in key for key in hf)
    assert cfg.algo.importance_tokens is not None
    assert (cfg.algo.importance_tokens.name == "all") == (has_experts or cfg.rollout.fp8 is not None)


def test_placement_and_memory() -> None:
    for recipe in ("glm5.2@h100x256", "deepseek-r1@h100x128", "glm4.5@h100x64", "glm4.7-flash@h100x8"):
        cfg = plan(recipe).cfg
        assert cfg.cluster.placement is Placement.colocated
        assert {group.sglang["mem_fraction_static"] for group in read_topology(cfg).groups} == {0.7}
    assert plan("glm4-9b@h100x8-split").cfg.cluster.placement is Placement.disaggregated
    assert plan("glm4-9b@h100x8-split").cfg.cluster.num_trainers == 4


@pytest.mark.parametrize(
    ("model", "ranks", "sizes", "stages"),
    [
        ("glm5.2", 32, {"tensor": 8, "pipeline": 2, "expert": 16, "last": 40}, [38, 40]),
        ("deepseek-r1", 32, {"tensor": 1, "pipeline": 8, "expert": 4, "first": 7, "last": 6}, [7, *[8] * 6, 6]),
        ("glm4.5", 16, {"tensor": 1, "pipeline": 4, "expert": 4}, [23] * 4),
    ],
)
def test_layouts_of_the_conversions(model: str, ranks: int, sizes: dict[str, int], stages: list[int]) -> None:
    keys = {
        "first": "num_layers_in_first_pipeline_stage",
        "last": "num_layers_in_last_pipeline_stage",
    }
    megatron = {keys.get(name, f"{name}_model_parallel_size"): size for name, size in sizes.items()}
    words = [f"train.megatron.{key}={size}" for key, size in megatron.items()]
    of_no_training = ["cluster.device_memory_mb=null", "cluster.host_memory_gb=null"]  # which would not fit
    words += ["train.max_tokens_per_micro_batch=4096", *of_no_training]
    composed = examine([f"+model={model}", f"+cluster=h100x{ranks}", "recipe=none", *words])
    assert composed.problems == []
    assert layout(composed)[1] == stages
