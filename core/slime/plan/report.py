"""The text of `slime plan`: what will run where, how the ranks are grouped, and what each engine is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from slime.compose.compose import Composed
from slime.config.schema import ClusterConfig, RewardConfig
from slime.extras import how_to_get
from slime.layout import Grid
from slime.plan.commands import commands
from slime.plan.model import PlannedModel, read_model
from slime.plan.summary import count, summary
from slime.plan.work import batch_lines, learning, request_lines, requests
from slime.plugins import Plugins
from slime.sizes.estimate import KIND
from slime.topology.launcher import launcher_name
from slime.topology.placement import HostDevices
from slime.topology.topology import Topology

_SCORER = "reward worker"
MAX_ROWS = 16
"""Ranks, groups and engines shown in full; of more, the first ones and a count."""


def report(composed: Composed, plugins: Plugins) -> str:
    assert not composed.problems, "a plan is made of a run that can start"
    cfg, model = composed.cfg, read_model(composed, plugins)
    sections = [
        [f"{name:<11} {text}" for name, text in summary(composed, model, plugins).items()],
        ["", "processes", *(f"  {name:<14} {num:>4}  {text}" for name, num, text in _rows(cfg.reward, model.topology))],
        ["", "pipeline stages", *_pipeline(model)],
        ["", "trainer ranks", *_ranks(model)],
        ["", "parallel groups", *_groups(model.topology.grid, model.dimensions)],
        ["", "batches", *batch_lines(model.topology)],
        ["", "learning", *(_setting(name, value, 46) for name, value in learning(model.topology).items())],
        ["", "trainers' environment", *_settings(model.topology.trainers[0].environment)],
    ]
    if model.topology.every_engine:
        sections.append(["", "engines", *_engines(model.topology)])
        if sizes := requests(model.topology):
            sections.append(["", "requests of an engine", *request_lines(sizes)])
        sections += _told(model.topology)
    if model.topology.outside:
        sections.append(["", "engines outside the run", *(f"  {each}" for each in model.topology.outside)])
    if composed.memory:
        sections += [["", title, *lines] for title, lines in composed.memory.sections()]
    elif cfg.cluster.on_gpus:
        why = reason_unknown(model, cfg.cluster)
        sections.append(["", "memory a device", f"  not known: {why}"])
    sections += [["", title, *lines] for part in model.parts for title, lines in part.sections()]
    if typed := commands(cfg.cluster):
        sections.append(["", "on the hosts", *(f"  {step['host']:<12} {step['command']}" for step in typed)])
    return "\n".join(line.rstrip() for section in sections for line in section)


def reason_unknown(model: PlannedModel, cluster: ClusterConfig) -> str:
    """Why nothing is said of the memory of its GPUs."""
    if model.unknown:
        return f"nobody told the size of '{model.unknown}'"
    return f"nothing that is installed estimates it. {how_to_get(f'{KIND}/{cluster.device.name}')}".rstrip()


def _setting(name: str, value: Any, width: int = 32) -> str:
    text = value.name if isinstance(value, Enum) else value if isinstance(value, str) else json.dumps(value)
    return f"  {name:<{width}} {text}"


def layout(topology: Topology) -> str:
    """The processes of the run, in one sentence."""
    cluster = topology.cluster
    hosts = _nodes(cluster)
    rows = _rows(topology.config.reward, topology)[1:]
    parts = (f"{count} {name}{'s' * (count > 1)}" + f" ({text})" * (name != _SCORER) for name, count, text in rows)
    return f"{hosts}: {', '.join(parts)}"


def _nodes(cluster: ClusterConfig) -> str:
    spares = f", {cluster.spares} more to spare" if cluster.spares else ""
    return f"{cluster.num_nodes} node(s) x {cluster.devices_per_node} {cluster.device.name}{spares}"


def _rows(reward: RewardConfig, topology: Topology) -> list[tuple[str, int, str]]:
    cluster, grid = topology.cluster, topology.grid
    sizes = f"tp {grid.tp} x cp {grid.cp} x pp {grid.pp} x dp {grid.dp}"
    backend = "NCCL" if cluster.on_gpus else "gloo"
    where = cluster.ray_address or "started for this run"
    launcher = launcher_name(cluster)
    where += f" over {launcher}" if launcher else ""
    where += f" on the hosts of {cluster.hostfile}" if cluster.hostfile else ""
    server = topology.config.rollout.backend.replace("sglang", "SGLang")
    limits = f"{reward.timeout_s:g} s and {reward.memory_mb} MiB a sample"
    rows = [
        ("driver", 1, f"Ray {where}, {_nodes(cluster)}"),
        ("trainer rank", cluster.num_trainers, f"{sizes}, {backend}"),
        ("engine", len(topology.engines), f"{server}, {_placed(topology)}, weights by {topology.transport}"),
        (
            "outside engine",
            len(topology.outside),
            f"{server}, started by others, no device of the run, weights by {topology.transport}",
        ),
        ("frozen engine", len(topology.frozen_engines), f"{server}, each with a model of its own"),
        (_SCORER, reward.num_workers if topology.generates else 0, limits),
    ]
    return [row for row in rows if row[1]]


def _placed(topology: Topology) -> str:
    """The placement, and of shared GPUs who is there when."""
    if not topology.shares_gpus:
        return topology.cluster.placement.name
    return "colocated by turns" if topology.takes_turns else "colocated: trainers and engines fit together, none moves"


def _pipeline(model: PlannedModel) -> Iterator[str]:
    yield f"  {'stage':<9}{'pp':>4}  {'ranks':<10}{'nodes':<8}{'layers':<22}{'parameters':>11}{'of a rank':>11}"
    for stage in model.stages:
        nodes = [model.topology.trainers[rank].place.node for rank in (stage.ranks[0], stage.ranks[-1])]
        yield (
            f"  {f'{stage.number + 1} of {len(model.stages)}':<9}{stage.number:>4}  {_span(stage.ranks):<10}"
            f"{_span(range(nodes[0], nodes[1] + 1)):<8}{', '.join(map(_span, stage.chunks)):<22}"
            f"{count(stage.parameters):>11}{count(stage.of_rank):>11}"
        )


def _ranks(model: PlannedModel) -> Iterator[str]:
    yield f"  rank  {'place':<18}" + "".join(f"{name:>4}" for name in model.dimensions) + "  layers"
    for trainer in model.topology.trainers[:MAX_ROWS]:
        numbers = "".join(f"{trainer.coordinates[name]:>4}" for name in model.dimensions)
        stage = model.stages[trainer.coordinates["pp"]]
        yield f"  {trainer.rank:>4}  {trainer.place!s:<18}{numbers}  {', '.join(map(_span, stage.chunks))}"
    yield from _more(model.topology.grid.world_size, "ranks")


def _span(numbers: range) -> str:
    if len(numbers) == 1:
        return str(numbers[0])
    return f"{numbers[0]}-{numbers[-1]}" if numbers else "none"


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
    width = max(len(engine.name) for engine in topology.every_engine)
    for engines, role in ((topology.engines, None), (topology.frozen_engines, "frozen")):
        for engine in engines[:MAX_ROWS]:
            yield f"  {engine.name:<{width}}  {role or engine.role.name:<8} {_places(engine.nodes)}"
        yield from _more(len(engines), "engines")


def _places(nodes: Sequence[HostDevices]) -> str:
    """The hosts of an engine in one word, where it has the same devices of each."""
    if len(nodes) == 1 or len({(at.devices.start, at.devices.stop) for at in nodes}) > 1:
        return ", ".join(map(str, nodes))
    devices = f" device {_span(nodes[0].devices)}" if nodes[0].devices else ""
    return f"nodes {nodes[0].node}-{nodes[-1].node}{devices}"


def _told(topology: Topology) -> Iterator[list[str]]:
    """The fields of SGLang's ServerArgs and the environment of every group's engines, in full for the first group.

    Addresses are found when an engine starts; the seed is that of the group's first engine.
    """
    firsts = [engine for engine in topology.every_engine if engine.name.endswith("-0")]
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
