"""The text of `slime plan`: what will run where, how the ranks are grouped, and what each engine is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from slime.config.compose import Composed
from slime.config.keys import own_keys, value_of
from slime.config.schema import CheckpointConfig, Device, Importance, SlimeConfig
from slime.plan.commands import commands
from slime.plan.memory_text import memory_sections, publish_lines
from slime.plan.model import PlannedModel, read_model
from slime.plugins import Plugins
from slime.topology.layout import Grid
from slime.topology.placement import Place
from slime.topology.topology import Topology

MAX_ROWS = 16
"""Ranks, groups and engines shown in full; of more, the first ones and a count."""


def report(composed: Composed, plugins: Plugins) -> str:
    """The plan of a run without problems."""
    assert not composed.problems, "a plan is made of a run that can start"
    cfg, model = composed.cfg, read_model(composed, plugins)
    sections = [
        _run(composed, model.hf, plugins),
        ["", "processes", *_processes(cfg, model.topology)],
        ["", "trainer ranks", *_ranks(model)],
        ["", "parallel groups", *_groups(model.topology.grid, model.dimensions)],
        ["", "learning", *_learning(cfg)],
        ["", "trainers' environment", *_settings(model.topology.trainers[0].environment)],
    ]
    if model.topology.engines:
        sections.append(["", "engines", *_engines(model.topology)])
        sections += _told(model.topology)
    if composed.memory:
        sections += [["", title, *lines] for title, lines in memory_sections(composed.memory)]
    elif model.unknown and cfg.cluster.device is Device.cuda:
        sections.append(["", "memory a device", f"  not known: nobody told the size of '{model.unknown}'"])
    if model.links:
        sections.append(["", "a published version", *publish_lines(cfg, model.links)])
    if typed := commands(cfg):
        sections.append(["", "on the hosts", *(f"  {step['host']:<12} {step['command']}" for step in typed)])
    return "\n".join(line.rstrip() for section in sections for line in section)


def _run(composed: Composed, hf: Mapping[str, Any], plugins: Plugins) -> Iterator[str]:
    cfg, choices = composed.cfg, composed.choices
    used = {"filter": cfg.filter.name, "buffer": cfg.buffer.name}
    if cfg.reward.name in plugins.rewards:
        used = {"reward": cfg.reward.name, **used}
    sizes = f"{hf['num_hidden_layers']} layers, hidden {hf['hidden_size']}, {hf['num_attention_heads']} heads"
    model = f"{cfg.model.name} ({cfg.model.family}): {sizes}; weights: {cfg.model.weights or cfg.model.init.name}"
    yield _row("run", f"{cfg.run.name} in {cfg.run.dir}/{cfg.run.name}, resume {cfg.run.resume.name}")
    yield _row("model", model)
    yield _row("recipe", f"{choices['recipe']}, task {choices['task']}")
    yield from (_row(stage, text) for stage, text in _stages(cfg))
    yield _row("checkpoints", _checkpoints(cfg.train.checkpoint))
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


def _checkpoints(checkpoint: CheckpointConfig) -> str:
    kept = f"the last {checkpoint.keep} are kept"
    if checkpoint.interval is None:
        return "none: a run that stops starts again from step 0"
    if checkpoint.interval == 0:
        return f"after each stage alone: a run that stops before loses what the stage did; {kept}"
    return f"every {checkpoint.interval} steps and after each stage; {kept}"


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


def _processes(cfg: SlimeConfig, topology: Topology) -> Iterator[str]:
    cluster, grid = cfg.cluster, topology.grid
    sizes = f"tp {grid.tp} x cp {grid.cp} x pp {grid.pp} x dp {grid.dp}"
    backend = "gloo" if cluster.device is Device.cpu else "NCCL"
    where = cluster.ray_address or "started for this run"
    where += f" over ssh on the hosts of {cluster.hostfile}" if cluster.hostfile else ""
    limits = f"{cfg.reward.timeout_s:g} s and {cfg.reward.memory_mb} MiB a sample"
    rows = [
        ("driver", 1, f"Ray {where}, {cluster.num_nodes} node(s) x {cluster.devices_per_node} {cluster.device.name}"),
        ("trainer rank", cluster.num_trainers, f"{sizes}, {backend}"),
        ("engine", len(topology.engines), f"SGLang, {cluster.placement.name}, weights by {topology.transport.name}"),
        ("reward worker", cfg.reward.num_workers if topology.engines else 0, limits),
    ]
    return (f"  {name:<14} {count:>4}  {text}" for name, count, text in rows if count)


def _ranks(model: PlannedModel) -> Iterator[str]:
    yield f"  rank  {'place':<18}" + "".join(f"{name:>4}" for name in model.dimensions) + "  layers"
    for trainer in model.topology.trainers[:MAX_ROWS]:
        numbers = "".join(f"{trainer.coordinates[name]:>4}" for name in model.dimensions)
        stage = model.stages[trainer.coordinates["pp"]]
        yield f"  {trainer.rank:>4}  {trainer.place!s:<18}{numbers}  {_layers(stage)}"
    yield from _more(model.topology.grid.world_size, "ranks")


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


def _engines(topology: Topology) -> Iterator[str]:
    width = max(len(engine.name) for engine in topology.engines)
    for engine in topology.engines[:MAX_ROWS]:
        yield f"  {engine.name:<{width}}  {engine.role.name:<8} {_places(engine.nodes)}"
    yield from _more(len(topology.engines), "engines")


def _places(nodes: Sequence[Place]) -> str:
    """The hosts of an engine in one word, where it has the same devices of each."""
    if len(nodes) == 1 or len({(at.devices.start, at.devices.stop) for at in nodes}) > 1:
        return ", ".join(map(str, nodes))
    devices = f" device {_layers([nodes[0].devices])}" if nodes[0].devices else ""
    return f"nodes {nodes[0].node}-{nodes[-1].node}{devices}"


def _told(topology: Topology) -> Iterator[list[str]]:
    """The fields of SGLang's ServerArgs and the environment of every group's engines, in full for the first group.

    Addresses are found when an engine starts; the seed is that of the group's first engine.
    """
    firsts = [engine for engine in topology.engines if engine.name.endswith("-0")]
    for engine in firsts:
        of, first = engine.name.removesuffix("-0"), firsts[0]
        whole = engine is first
        for what, mine, others in (
            ("arguments", engine.fields, first.fields),
            ("environment", engine.environment, first.environment),
        ):
            shown = {key: value for key, value in mine.items() if whole or others.get(key, "") != value}
            beside = "" if whole else f", where other than those of {first.name.removesuffix('-0')}"
            yield ["", f"{what} of {of} engines{beside}", *_settings(shown)]


def _settings(values: Mapping[str, Any]) -> Iterator[str]:
    width = max(32, max(map(len, values), default=0) + 1)
    return (_setting(name, value, width) for name, value in sorted(values.items()))
