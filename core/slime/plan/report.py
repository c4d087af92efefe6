"""The text of `slime plan`: what will run where, how the ranks are grouped, and what each engine is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from slime.config.compose import Composed
from slime.config.hf import read_hf_config
from slime.config.keys import own_keys, value_of
from slime.config.needs import config_folder, is_awaited
from slime.config.paths import located, resolve
from slime.config.schema import Device, Importance, SlimeConfig
from slime.plugins import Plugins
from slime.topology.engines import generates, num_engines
from slime.topology.layout import Grid, read_grid, split_layers
from slime.topology.placement import engine_places, trainer_places
from slime.topology.server_fields import server_fields

MAX_ROWS = 16
"""Ranks, groups and engines shown in full; of more, the first ones and a count."""


def report(composed: Composed, plugins: Plugins) -> str:
    """The plan of a run without problems."""
    assert not composed.problems, "a plan is made of a run that can start"
    cfg = composed.cfg
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    grid = read_grid(cfg.cluster.num_trainers, cfg.train.megatron)
    architecture = plugins.models.create(cfg.model.family).transformer_config(hf)
    dimensions = ["tp", "cp", "dp", "pp", *(["etp", "ep", "edp"] if architecture.get("num_moe_experts") else [])]
    sections = [
        _run(composed, hf, plugins),
        ["", "processes", *_processes(cfg, grid)],
        ["", "trainer ranks", *_ranks(cfg, hf, grid, dimensions)],
        ["", "parallel groups", *_groups(grid, dimensions)],
        ["", "learning", *_learning(cfg)],
    ]
    if generates(cfg):
        sections += [["", "engines", *_engines(cfg)], ["", "each engine's arguments", *_arguments(cfg)]]
    return "\n".join(line.rstrip() for section in sections for line in section)


def _run(composed: Composed, hf: Mapping[str, Any], plugins: Plugins) -> Iterator[str]:
    cfg, choices = composed.cfg, composed.choices
    used = {"filter": cfg.filter.name, "buffer": cfg.buffer.name}
    if cfg.reward.name in plugins.rewards:
        used = {"reward": cfg.reward.name, **used}
    sizes = f"{hf['num_hidden_layers']} layers, hidden {hf['hidden_size']}, {hf['num_attention_heads']} heads"
    model = f"{cfg.model.name} ({cfg.model.family}): {sizes}; weights: {cfg.model.init.name}"
    yield _row("run", f"{cfg.run.name} in {cfg.run.dir}/{cfg.run.name}, resume {cfg.run.resume.name}")
    yield _row("model", model)
    yield _row("recipe", f"{choices['recipe']}, task {choices['task']}")
    yield from (_row(stage, text) for stage, text in _stages(cfg))
    for kind, item in plugins.provenance(used)["used"].items():
        yield _row(kind, f"{item['name']} ({item['distribution']} {item['version']})")


def _row(name: str, text: str) -> str:
    return f"{name:<11} {text}"


def _stages(cfg: SlimeConfig) -> Iterator[tuple[str, str]]:
    rollout = cfg.rollout
    if cfg.sft.path and cfg.sft.num_steps:
        yield "supervised", f"{cfg.sft.num_steps} steps of {cfg.sft.batch_size} rows of {cfg.sft.path}"
    if cfg.algo.name != "sft":
        samples = f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples"
        yield cfg.algo.name, f"{cfg.run.num_steps} steps of {samples}, prompts from {cfg.data.path}"
        if rollout.over_sampling > 1:
            yield "stale", f"tokens of older weights (over_sampling {rollout.over_sampling:g}): {_correction(cfg)}"
    if cfg.eval.path:
        when = "after the last step" if cfg.algo.name == "sft" else f"every {cfg.eval.interval} steps"
        yield "evaluation", f"{when} on {cfg.eval.path}"


def _correction(cfg: SlimeConfig) -> str:
    algo, lag = cfg.algo, cfg.rollout.max_weight_lag
    bounds = f"[{algo.importance_low:g}, {algo.importance_high:g}]"
    outside = f"clipped to {bounds}" if algo.importance is Importance.truncate else f"masked outside {bounds}"
    weight = f"loss times pi_old / pi_engine, {outside}"
    text = "the PPO ratio is the one to what sampled them" if algo.rollout_logprobs_as_old else weight
    return text if lag is None else f"{text}; masked if over {lag} versions old"


def _learning(cfg: SlimeConfig) -> Iterator[str]:
    """The values that decide what is learnt; what `train.optimizer` does not say is Megatron-core's own default."""
    reinforces, keys, optimizer = cfg.algo.name != "sft", list[str](), dict(cfg.train.optimizer)
    if reinforces:
        keys += [key for key in own_keys() if key.startswith("algo.")]
        keys += ["train.steps_per_rollout", "train.lr_warmup_steps", "train.lr_decay"]
    else:
        optimizer = {key: value for key, value in optimizer.items() if key not in ("lr", "min_lr")}
    keys += ["sft.lr", "sft.lr_warmup_steps", "sft.lr_decay"] if cfg.sft.num_steps else []
    values = {key: value_of(cfg, key) for key in keys}
    for name, value in {**values, **{f"train.optimizer.{key}": optimizer[key] for key in sorted(optimizer)}}.items():
        yield _setting(name, value, 42)


def _setting(name: str, value: Any, width: int = 32) -> str:
    text = value.name if isinstance(value, Enum) else value if isinstance(value, str) else json.dumps(value)
    return f"  {name:<{width}} {text}"


def _processes(cfg: SlimeConfig, grid: Grid) -> Iterator[str]:
    cluster = cfg.cluster
    sizes = f"tp {grid.tp} x cp {grid.cp} x pp {grid.pp} x dp {grid.dp}"
    backend = "gloo" if cluster.device is Device.cpu else "NCCL"
    where = cluster.ray_address or "started for this run"
    limits = f"{cfg.reward.timeout_s:g} s and {cfg.reward.memory_mb} MiB a sample"
    rows = [
        ("driver", 1, f"Ray {where}, {cluster.num_nodes} node(s) x {cluster.devices_per_node} {cluster.device.name}"),
        ("trainer rank", cluster.num_trainers, f"{sizes}, {backend}"),
        ("engine", num_engines(cfg), f"SGLang, {cluster.placement.name}"),
        ("router", int(num_engines(cfg) > 1), "sglang-router"),
        ("reward worker", cfg.reward.num_workers if generates(cfg) else 0, limits),
    ]
    return (f"  {name:<14} {count:>4}  {text}" for name, count, text in rows if count)


def _ranks(cfg: SlimeConfig, hf: Mapping[str, Any], grid: Grid, names: Sequence[str]) -> Iterator[str]:
    stages = split_layers(hf["num_hidden_layers"], grid, cfg.train.megatron)
    yield f"  rank  {'place':<18}" + "".join(f"{name:>4}" for name in names) + "  layers"
    for rank, place in enumerate(trainer_places(cfg)[:MAX_ROWS]):
        at = grid.coordinates(rank)
        numbers = "".join(f"{at[name]:>4}" for name in names)
        yield f"  {rank:>4}  {place!s:<18}{numbers}  {_layers(stages[at['pp']])}"
    yield from _more(grid.world_size, "ranks")


def _layers(chunks: Sequence[range]) -> str:
    return ", ".join(f"{chunk[0]}-{chunk[-1]}" if chunk else "none" for chunk in chunks)


def _groups(grid: Grid, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        groups = grid.groups(name)
        shown = " ".join(_ranks_in_words(group) for group in groups[: MAX_ROWS // 2])
        more = f" ... {len(groups) - MAX_ROWS // 2} more" if len(groups) > MAX_ROWS // 2 else ""
        yield f"  {name:<4}{len(groups):>4} of {getattr(grid, name):<4} {shown}{more}"


def _ranks_in_words(group: Sequence[int]) -> str:
    """`[0,8,..,56]` for long groups (every group is an arithmetic sequence of sequences; its ends tell enough)."""
    inside = group if len(group) <= 4 else [group[0], group[1], "..", group[-1]]
    return f"[{','.join(map(str, inside))}]"


def _more(count: int, what: str) -> Iterator[str]:
    if count > MAX_ROWS:
        yield f"  ... {count - MAX_ROWS} more {what}"


def _engines(cfg: SlimeConfig) -> Iterator[str]:
    for engine, places in enumerate(engine_places(cfg)[:MAX_ROWS]):
        yield f"  {engine:>4}  {', '.join(map(str, places))}"
    yield from _more(num_engines(cfg), "engines")


def _arguments(cfg: SlimeConfig) -> Iterator[str]:
    """Fields of SGLang's ServerArgs that every engine gets; its address is found when it starts."""
    awaited = is_awaited(cfg.model.path, cfg.model.source)
    folder = located(cfg.model.path) if awaited else resolve(cfg.model.path)
    fields = server_fields(cfg, 0, model_path=Path(folder))
    for name, value in sorted(fields.items()):
        yield _setting(name, value)
