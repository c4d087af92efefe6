"""The text of `slime plan`: what will run where, how the ranks are grouped, and what each engine is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from slime.algo.stages import keys_read, run_stages
from slime.compose.compose import Composed
from slime.config.choices import Publish, Surplus
from slime.config.schema import (
    AlgoConfig,
    CheckpointConfig,
    Importance,
    ImportanceTokens,
    Init,
    RewardConfig,
    Role,
    RolloutConfig,
    SetConfig,
    TrainConfig,
)
from slime.extras import how_to_get
from slime.layout import Grid
from slime.plan.commands import commands
from slime.plan.model import PlannedModel, read_model
from slime.plan.surplus import stale_share
from slime.plan.work import batch, batch_lines, learning, request_lines, requests
from slime.plugins import Plugins
from slime.sizes.estimate import KIND
from slime.topology.adapters import adapters_of
from slime.topology.launcher import launcher_name
from slime.topology.placement import HostDevices
from slime.topology.quantization import quantizes
from slime.topology.recordings import recordings_of
from slime.topology.topology import Topology

MAX_ROWS = 16
"""Ranks, groups and engines shown in full; of more, the first ones and a count."""
UNTRIED = "; nobody has trained one of a large model with Adam on the CPU yet"


def report(composed: Composed, plugins: Plugins) -> str:
    assert not composed.problems, "a plan is made of a run that can start"
    cfg, model = composed.cfg, read_model(composed, plugins)
    sections = [
        [f"{name:<11} {text}" for name, text in summary(composed, model, plugins).items()],
        ["", "processes", *_processes(cfg.reward, model.topology)],
        ["", "pipeline stages", *_pipeline(model)],
        ["", "trainer ranks", *_ranks(model)],
        ["", "parallel groups", *_groups(model.topology.grid, model.dimensions)],
        ["", "batches", *batch_lines(model.topology)],
        [
            "",
            "learning",
            *(_setting(name, value, 46) for name, value in learning(model.topology).items()),
        ],
        ["", "trainers' environment", *_settings(model.topology.trainers[0].environment)],
    ]
    if model.topology.engines:
        sections.append(["", "engines", *_engines(model.topology)])
        sections.append(["", "requests of an engine", *request_lines(requests(model.topology))])
        sections += _told(model.topology)
    if composed.memory:
        sections += [["", title, *lines] for title, lines in composed.memory.sections()]
    elif cfg.cluster.on_gpus:
        missing = f"nothing that is installed estimates it. {how_to_get(f'{KIND}/{cfg.cluster.device.name}')}".rstrip()
        why = f"nobody told the size of '{model.unknown}'" if model.unknown else missing
        sections.append(["", "memory a device", f"  not known: {why}"])
    sections += [["", title, *lines] for part in model.parts for title, lines in part.sections()]
    if typed := commands(cfg.cluster):
        sections.append(["", "on the hosts", *(f"  {step['host']:<12} {step['command']}" for step in typed)])
    return "\n".join(line.rstrip() for section in sections for line in section)


def summary(composed: Composed, model: PlannedModel, plugins: Plugins) -> dict[str, str]:
    """Label -> sentence: what runs, where its checkpoints go, what it learns from, and how that is weighed."""
    cfg, choices, keys = composed.cfg, composed.choices, model.architecture
    used = {
        label: name
        for label, name in composed.chosen.items()
        if (kind := label.partition(".")[0]) in ("reward", "filter", "buffer") and name in plugins.registries[kind]
    }
    weights = cfg.model.weights or (cfg.model.path if cfg.model.init is Init.checkpoint else cfg.model.init.name)
    sizes = f"{keys['num_layers']} layers, hidden {keys['hidden_size']}, {keys['num_attention_heads']} heads"
    provenance = plugins.provenance(used)["used"]
    return {
        "run": f"{cfg.run.name} in {cfg.run.dir}/{cfg.run.name}, resume {cfg.run.resume.name}",
        "model": f"{cfg.model.name} ({cfg.model.family}): {sizes}; weights: {weights}",
        **_adapters(cfg.train, model),
        **_replayed(model.topology),
        "recipe": f"{choices['recipe']}, task {choices['task']}",
        **dict(_stages(model)),
        "checkpoints": _checkpoints(cfg.train.checkpoint),
        **{kind: f"{item['name']} ({item['distribution']} {item['version']})" for kind, item in provenance.items()},
    }


def _adapters(train: TrainConfig, model: PlannedModel) -> dict[str, str]:
    if not (chosen := adapters_of(train)):
        return {}
    parameters = f"{_count(model.adapters)} parameters learn" if model.adapters else "the model's weights stay"
    return {"adapters": f"{chosen.in_words}; {parameters}"}


def _replayed(topology: Topology) -> dict[str, str]:
    cfg = topology.config
    found = recordings_of(cfg)
    if not found:
        return {}
    sizes = batch(topology)
    num_tokens = sizes["samples"] * sizes["optimizer_steps"] * sizes["longest"]
    size = sum(each.token_bytes for each in found)
    names = ", ".join(each.name for each in found)
    return {"replay": f"{names}: {size:,} bytes a token, at most {num_tokens * size / 1e9:.3g} GB a step"}


def _stages(model: PlannedModel) -> Iterator[tuple[str, str]]:
    cfg, has_experts = model.topology.config, bool(model.architecture.get("num_moe_experts"))
    rollout = cfg.rollout
    if cfg.sft.path and cfg.sft.num_steps:
        yield "supervised", f"{cfg.sft.num_steps} steps of {cfg.sft.batch_size} rows of {cfg.sft.path}"
    if run_stages(cfg).reinforces:
        samples = f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples"
        yield cfg.algo.name, f"{cfg.run.num_steps} steps of {samples}, prompts from {cfg.data.path}"
        if run_stages(cfg).have_critic:
            yield "critic", _critic(cfg.algo) + (UNTRIED if cfg.train.optimizer.get("optimizer_cpu_offload") else "")
        for name, train_set in cfg.data.sets.items():
            taken = f"share {train_set.share:g} to {cfg.data.share:g}, prompts from {train_set.path}"
            yield f"set {name}", f"{taken}{_own(train_set)}"
        if rollout.max_staleness:
            yield "staleness", _staleness(rollout)
        elif rollout.over_sampling > 1:
            engines = sum(group.num_engines for group in model.topology.groups if group.role is not Role.prefill)
            yield "surplus", _surplus(rollout, engines * rollout.max_requests_per_engine)
        if "importance" in keys_read(cfg.algo) and (corrected := _corrected(cfg.algo, cfg.rollout, has_experts)):
            yield "importance", f"{corrected}: {_correction(cfg.algo)}"
    if cfg.eval.path:
        when = "after the last step" if not run_stages(cfg).reinforces else f"every {cfg.eval.interval} steps"
        yield "evaluation", f"{when} on {cfg.eval.path}"
        for name, held_out in cfg.eval.sets.items():
            samples = f"{held_out.samples_per_prompt} samples a prompt of {held_out.path}"
            yield f"eval {name}", f"{samples} at temperature {held_out.sampling.temperature:g}{_own(held_out)}"


def _critic(algo: AlgoConfig) -> str:
    critic = algo.critic
    begins = f"from {critic.path}" if critic.path else "from the policy's weights"
    alone = f", alone for {critic.only_steps} steps" if critic.only_steps else ""
    where = "takes turns with the policy on the devices" if critic.offload else "stays beside the policy"
    return f"a second model {begins}, learning rate {critic.lr:g}{alone}, for {algo.advantage}; {where}"


def _own(prompts: SetConfig) -> str:
    chosen = {"reward": prompts.reward, "program": prompts.program}
    return "".join(f", {kind} {name}" for kind, name in chosen.items() if name)


def _checkpoints(checkpoint: CheckpointConfig) -> str:
    kept = f"the last {checkpoint.keep} are kept"
    if checkpoint.interval is None:
        lost = "" if checkpoint.export_hf else ", and no export: nothing that is learnt is kept"
        return f"none: a run that stops starts again from step 0{lost}"
    if checkpoint.interval == 0:
        return f"only after each stage: a run that stops earlier loses what the stage learnt; {kept}"
    return f"every {checkpoint.interval} steps and after each stage; {kept}"


def _surplus(rollout: RolloutConfig, in_flight: int) -> str:
    left = "that were begun last" if rollout.fixed_prompts else "that are not done when the step has enough"
    begun = f"over_sampling {rollout.over_sampling:g}: groups {left}"
    if not rollout.continues:
        return f"{begun} are dropped: no token is of older weights"
    went = "go on in the next" if rollout.surplus is Surplus["continue"] else "are dropped but for finished ones"
    share, lag = stale_share(rollout, in_flight), rollout.max_weight_lag
    old = f"about {share:.0%} of trained tokens are of older weights, if lengths are spread evenly"
    return f"{begun} {went}; {old}" + ("" if lag is None else f"; those over {lag} versions old are masked")


def _staleness(rollout: RolloutConfig) -> str:
    bound = rollout.max_staleness
    steps = f"the next {bound} steps" if bound > 1 else "the next step"
    ahead = f"the {bound * rollout.prompts_per_step} groups of {steps}"
    inside = {
        Publish.retract: "go on under the new weights, with keys and values of these",
        Publish.keep: "go on under the new weights, with the keys and values that they have",
        Publish.abort: "are ended, and what is left of each is asked for",
    }[rollout.publish]
    old = f"no token that is trained on is over {bound} version{'s' * (bound > 1)} old"
    return f"{ahead} are generated while a step trains, {old}; at a publish, responses {inside}"


def _corrected(algo: AlgoConfig, rollout: RolloutConfig, has_experts: bool) -> str:
    """Which tokens of a run are corrected, and why; empty if none is."""
    if algo.importance_tokens is ImportanceTokens.all:
        causes = {
            "engines quantise": quantizes(rollout),
            "rounding sends tokens to other experts": has_experts,
            "some tokens are of older weights": rollout.continues,
        }
        why = " and ".join(cause for cause, holds in causes.items() if holds)
        return "all tokens" + (f", because {why}" if why else "")
    return "tokens of older weights" if rollout.continues else ""


def _correction(algo: AlgoConfig) -> str:
    bounds = f"[{algo.importance_low:g}, {algo.importance_high:g}]"
    outside = f"clipped to {bounds}" if algo.importance is Importance.truncate else f"masked outside {bounds}"
    weight = f"loss times pi_old / pi_engine, {outside}"
    return "the PPO ratio compares with the engine that sampled them" if algo.rollout_logprobs_as_old else weight


def _setting(name: str, value: Any, width: int = 32) -> str:
    text = value.name if isinstance(value, Enum) else value if isinstance(value, str) else json.dumps(value)
    return f"  {name:<{width}} {text}"


def _processes(reward: RewardConfig, topology: Topology) -> Iterator[str]:
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
        ("driver", 1, f"Ray {where}, {cluster.num_nodes} node(s) x {cluster.devices_per_node} {cluster.device.name}"),
        ("trainer rank", cluster.num_trainers, f"{sizes}, {backend}"),
        ("engine", len(topology.engines), f"{server}, {_placed(topology)}, weights by {topology.transport}"),
        ("frozen engine", len(topology.frozen_engines), f"{server}, each with a model of its own"),
        ("reward worker", reward.num_workers if topology.engines else 0, limits),
    ]
    return (f"  {name:<14} {count:>4}  {text}" for name, count, text in rows if count)


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
            f"{_count(stage.parameters):>11}{_count(stage.of_rank):>11}"
        )


def _count(parameters: int | None) -> str:
    if parameters is None:
        return "not known"
    size, unit = (1e9, "B") if parameters >= 1e9 else (1e6, "M")
    return f"{parameters / size:,.2f} {unit}"


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
