"""What a step asks of trainers and engines: sizes of batches, requests at once, and the keys that decide the learning.

The plan's text and its JSON document are both made of these values.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from enum import Enum
from typing import Any

from slime.algo.stages import keys_read, keys_with_readers, run_stages
from slime.config.keys import ANY_NAME, own_keys, value_of
from slime.config.schema import ClusterConfig, Role, TrainConfig
from slime.engines.limits import longest_of
from slime.layout import Grid
from slime.models.traits import WORTH_SHARING, obstacle_to_sharing, share_below
from slime.topology.quantization import choices
from slime.topology.server_fields import requests_per_rank
from slime.topology.topology import Topology

OF_REINFORCEMENT = (
    "run.num_steps",
    "algo.",
    "train.steps_per_rollout",
    "train.epochs_per_rollout",
    "train.lr_",
    "train.mtp_loss_scale",
    "rollout.prompts_per_step",
    "rollout.samples_per_prompt",
    "rollout.over_sampling",
    "rollout.max_weight_lag",
    "rollout.surplus",
    "rollout.max_staleness",
    "rollout.publish",
    "rollout.fixed_prompts",
    "rollout.max_prompt_tokens",
    "rollout.sampling.",
)
OF_DATA = ("data.", "filter.", "buffer.")
"""Keys, and beginnings of keys, that decide what reinforcement learning learns; those of quantizations too."""


def learning(topology: Topology) -> dict[str, Any]:
    """Dotted key -> value of what decides learning: data, samples, rewards, loss, optimizer, evaluation, checkpoints.

    Keys outside `algo` that are empty are left out, and those of `algo` that neither objective nor estimator reads, or
    that are for a critic that there is not. What `train.optimizer` does not say is Megatron-core's own default.
    """
    cfg, stages = topology.config, run_stages(topology.config)
    reinforcing = (*OF_REINFORCEMENT, *choices(cfg.rollout), *OF_DATA)
    begin = ["run.seed", *(reinforcing if stages.reinforces else ())]
    begin += ["sft."] if cfg.sft.num_steps else []
    begin += ["reward."] if topology.generates else []
    begin += ["eval."] if cfg.eval.path else []
    begin += ["train.checkpoint."]
    keys = [key for start in begin for key in own_keys() if key.startswith(start)]
    keys = [key for key in keys if not key.endswith(".source") and ANY_NAME not in key]
    optimizer = dict(cfg.train.optimizer)
    if not stages.reinforces:
        optimizer = {key: value for key, value in optimizer.items() if key not in ("lr", "min_lr")}
    found = {key: value_of(cfg, key) for key in keys} | {f"train.optimizer.{key}": optimizer[key] for key in optimizer}
    unread = {f"algo.{key}" for key in {*keys_with_readers()} - keys_read(cfg.algo)}
    unread |= set() if cfg.data.sets else {"data.share"}
    unread |= set() if stages.have_critic else {key for key in keys if key.startswith("algo.critic.")}
    return {
        key: _plain(value)
        for key, value in found.items()
        if key not in unread and value not in ([], {}) and (value is not None or key.startswith("algo."))
    }


def _plain(value: Any) -> Any:
    """Names of choices, those of a plugin's options among them; sections as dictionaries, without what is empty."""
    if dataclasses.is_dataclass(value):
        return {key: _plain(each) for key, each in vars(value).items() if each not in (None, [], {})}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value.name if isinstance(value, Enum) else value


def batch(topology: Topology) -> dict[str, int]:
    """Sizes of what the trainers take at once.

    Returns:
        `tokens_a_group`: of a micro-batch, which the ranks of a context-parallel group share; `tokens_a_rank`;
        `samples`: of an optimizer step; `samples_a_rank`: at most, of a data-parallel one; and of reinforcement
        learning `optimizer_steps` of a rollout in each of its `epochs`, `longest`: tokens of a sequence, padded, and
        `begun`: responses that a rollout begins. Where samples may share their prompt on GPUs, or are told to,
        `percent_shared`: of the tokens of the longest samples, what that leaves.
    """
    cfg, grid = topology.config, topology.grid
    cap, rollout, steps = cfg.train.max_tokens_per_micro_batch, cfg.rollout, cfg.train.steps_per_rollout
    sizes = {"tokens_a_group": cap, "tokens_a_rank": cap // grid.cp}
    if not run_stages(cfg).reinforces:
        answers = 2 if run_stages(cfg).all[0].trains_on_pairs else 1
        of_rank = -(-cfg.sft.batch_size // grid.dp)
        return {**sizes, "samples": answers * cfg.sft.batch_size, "samples_a_rank": answers * of_rank}
    samples = rollout.prompts_per_step * rollout.samples_per_prompt
    over_sampling = 1.0 if rollout.max_staleness else rollout.over_sampling
    longest, num = longest_of(rollout, rollout.sampling), rollout.samples_per_prompt
    percent = round(100 - 100 * rollout.max_prompt_tokens * (num - 1) / (longest * num))
    shares = cfg.cluster.on_gpus and num > 1 and sharing(cfg.train, cfg.cluster, grid) > 0
    return {
        **sizes,
        "samples": samples // steps,
        "samples_a_rank": -(-samples // steps // grid.dp),
        "optimizer_steps": steps,
        "epochs": cfg.train.epochs_per_rollout,
        "longest": grid.padded(longest),
        "begun": math.ceil(rollout.prompts_per_step * over_sampling) * num,
        **({"percent_shared": percent} if cfg.train.share_prompts or shares else {}),
    }


def sharing(train: TrainConfig, cluster: ClusterConfig, grid: Grid) -> float:
    """`slime.models.traits.share_below`, whatever blocks of plugins need."""
    return share_below(train, on_gpus=cluster.on_gpus, obstacle=obstacle_to_sharing(train, (), grid.cp))


def requests(topology: Topology) -> dict[str, dict[str, int | None]]:
    """Engine group -> requests of one engine.

    Returns:
        `in_flight`: that the run keeps at it at most; `a_data_parallel_rank`: of these; `running`: that it computes at
        once, null where SGLang decides; `in_graphs`: that the CUDA graphs of a data-parallel rank cover, null without.
    """
    most = topology.config.rollout.max_requests_per_engine
    found: dict[str, dict[str, int | None]] = {}
    for group in topology.groups:
        fields = next(engine.fields for engine in topology.engines if engine.name == f"{group.name}-0")
        has_graphs = topology.cluster.on_gpus and group.role is not Role.prefill
        found[group.name] = {
            "in_flight": most,
            "a_data_parallel_rank": -(-most // group.dp),
            "running": fields.get("max_running_requests"),
            "in_graphs": requests_per_rank(group) if has_graphs else None,
        }
    return found


def batch_lines(topology: Topology) -> Iterator[str]:
    cfg, grid = topology.config, topology.grid
    sizes = batch(topology)
    group = (
        f", {sizes['tokens_a_rank']:,} a rank of a context-parallel group of {grid.cp}" if grid.cp > 1 else " a rank"
    )
    longest = f"; the longest sequence has {sizes['longest']:,}" if "longest" in sizes else ""
    yield f"  micro-batch     {sizes['tokens_a_group']:,} tokens{group}{longest}"
    step = f"{sizes['samples']:,} samples, at most {sizes['samples_a_rank']:,} a data-parallel rank"
    of = ""
    if longest:
        epochs = f" in each of {sizes['epochs']} epochs" if sizes["epochs"] > 1 else ""
        of = f"; {sizes['optimizer_steps']} a rollout{epochs}, which begins {sizes['begun']:,} responses"
    yield f"  optimizer step  {step}{of}"
    if percent := sizes.get("percent_shared"):
        worth = f"in steps where they leave {WORTH_SHARING:.0%} of the tokens or less; {percent}%"
        left = f"leave {percent}% of the tokens" if cfg.train.share_prompts else worth
        yield f"  shared prompts  {left} where samples are as long as they may be"


def request_lines(groups: dict[str, dict[str, int | None]]) -> Iterator[str]:
    for name, sizes in groups.items():
        running = "as many running as SGLang takes" if sizes["running"] is None else f"{sizes['running']:,} running"
        graphs = f"; CUDA graphs for {sizes['in_graphs']:,} a rank" if sizes["in_graphs"] else ""
        of_rank = f"{sizes['a_data_parallel_rank']:,} a data-parallel rank"
        yield f"  {name}: at most {sizes['in_flight']:,} in flight, {of_rank}, {running}{graphs}"
