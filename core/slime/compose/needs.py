"""What a run needs beside a right config, and may be missing here: a plan does without it, a run does not."""

from __future__ import annotations

import socket
from collections.abc import Container, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import PurePosixPath

from slime import plugins
from slime.compose.model_files import weight_needs
from slime.config.passthrough import made_for
from slime.config.paths import exists, fetch, is_hub_id, resolve, resolve_rows
from slime.config.rollout import ProgramConfig, RolloutConfig
from slime.config.schema import ClusterConfig, DataConfig, EvalConfig, ModelConfig, SetConfig
from slime.data.tokenizer_files import tokenizer_problems
from slime.engines.software import software
from slime.errors import SlimeError, did_you_mean
from slime.extras import absent, how_to_get, install
from slime.topology.launcher import launcher_name
from slime.topology.topology import Topology

MAX_NAMED = 3
"""Packages that are named, of those that are missing."""
CAST = "-bf16"
"""Ends the folder that the config of a model published in FP8 names, behind the name of its source."""


def needs(topology: Topology, stated: Container[str] = ()) -> list[SlimeError]:
    """What must be fetched, installed or started, in the order in which it stands in the config; `stated`: the keys of
    the command line."""
    cfg = topology.config
    sections: dict[str, DataConfig | EvalConfig | SetConfig] = {"data": cfg.data, **cfg.data.named()}
    sections |= {"eval": cfg.eval, **cfg.eval.named()}
    rows = [need for home, section in sections.items() for need in _rows(home, section, stated)]
    hosts = [*_hosts(cfg.cluster), *_interface(cfg.cluster)]
    return [*_model(cfg.model, stated), *weight_needs(topology), *rows, *hosts, *_packages(topology), *_apart(topology)]


def is_awaited(path: str | None, source: str | None) -> bool:
    """Whether a path is missing of which it is known where to get it."""
    return path is not None and source is not None and not exists(path)


def absent_model(model: ModelConfig, stated: Container[str] = ()) -> SlimeError:
    """What to do where `model.path` is missing. Its source is fetched into a folder of its own name alone, or into one
    that is stated beside it: in any other it would pass for the model that was meant."""
    source, path, where = model.source, model.path, "model.path"
    if source and path == f"{source}{CAST}":
        cast = f"slime convert fp8-to-bf16 {source} {path}"
        todo = f"Run '{fetch(source, source)}' and '{cast}', or set model.path=<folder>."
        return SlimeError(f"there is no '{path}'", where=where, todo=todo)
    if source and (path == source or _are_stated("model", stated)):
        todo = f"Run '{fetch(source, path)}', or name its folder with model.path=<folder>."
        return SlimeError(f"there is no '{path}'", where=where, todo=todo)
    found = _absent(path, where)
    plan = f" (this plan is of {source})" if source and model.config and model.config != path else ""
    return SlimeError(found.what + plan, where=found.where, todo=found.todo)


def _absent(path: str, key: str) -> SlimeError:
    try:
        resolve_rows(path)
    except SlimeError as problem:
        return problem.under(key)
    raise AssertionError("it is missing")


def _are_stated(home: str, stated: Container[str]) -> bool:
    return f"{home}.path" in stated and f"{home}.source" in stated


def _model(model: ModelConfig, stated: Container[str]) -> Iterator[SlimeError]:
    if is_awaited(model.path, model.source):
        yield absent_model(model, stated)
    elif exists(folder := model.tokenizer or model.path):
        yield from tokenizer_problems(resolve(folder))


def _rows(home: str, section: DataConfig | EvalConfig | SetConfig, stated: Container[str]) -> Iterator[SlimeError]:
    path, source, key = section.path, section.source, f"{home}.path"
    if path is None or source is None or not is_awaited(path, source):
        return
    inside = PurePosixPath(path).is_relative_to(source)  # a data set may keep its files in subfolders
    is_there = inside and exists(source) and key in stated  # then it lacks this file, and a download brings no other
    if (inside and not is_there) or _are_stated(home, stated):
        todo = (
            f"Run '{fetch(source, source if inside else PurePosixPath(path).parent, 'dataset')}', or set {key}=<file>."
        )
        yield SlimeError(f"there is no '{path}'", where=key, todo=todo)
    elif is_hub_id(path):
        yield absent_set(path).under(key)
    else:
        yield _absent(path, key)


def absent_set(name: str) -> SlimeError:
    """The error of a path that reads as a data set's name on the Hugging Face hub."""
    todo = f"A data set of the Hugging Face hub is 'hf://{name}', or fetched by '{fetch(name, name, 'dataset')}'."
    return SlimeError(f"there is no '{name}'", todo=todo)


def _hosts(cluster: ClusterConfig) -> Iterator[SlimeError]:
    named = launcher_name(cluster) or cluster.ray_address
    if cluster.on_gpus and cluster.num_hosts > 1 and not named:
        todo = (
            "Set cluster.hostfile=<a file with an address a line>, or start Ray by the commands that "
            "'slime plan --all' prints and set cluster.ray_address."
        )
        if cluster.socket_interface is None:
            todo += " Name their network, too: cluster.socket_interface, and NCCL_IB_HCA in cluster.environment."
        yield SlimeError(f"no file names the {cluster.num_hosts} hosts", where="cluster.hostfile", todo=todo)


def _interface(cluster: ClusterConfig) -> Iterator[SlimeError]:
    """Network interfaces of the only host, which is this one; others are asked when they join."""
    if cluster.socket_interface is None or cluster.num_hosts > 1 or cluster.hostfile or cluster.ray_address:
        return
    known = [name for _, name in socket.if_nameindex()]
    for name in cluster.socket_interface.split(","):
        if name not in known:
            what, where = f"this host has no network interface '{name}'", "cluster.socket_interface"
            yield SlimeError(what, where=where, todo=did_you_mean(name, known))


def _packages(topology: Topology) -> Iterator[SlimeError]:
    """Packages of this host; others are asked when their engines start."""
    device, backend = topology.cluster.device, topology.config.rollout.backend
    lacking = sorted(_asked(absent(device.value), backend), key=lambda name: (name not in made_for(), name))
    if lacking:
        yield SlimeError(f"{_listed(lacking)} not installed", todo=install(device.value))
    for distribution in _asked(made_for(), backend):
        if distribution not in lacking:
            yield from _version(distribution, made_for()[distribution])
    if topology.works_in_pairs and topology.cluster.num_nodes == 1 and "slime-sglang" not in lacking:
        try:
            software(device, backend).require_transfer(device)
        except SlimeError as need:
            yield need


def _asked(distributions: Iterable[str], backend: str) -> list[str]:
    """The distributions without those of the default server, where another one is chosen."""
    return [name for name in distributions if backend in name or RolloutConfig.backend not in name]


def _apart(topology: Topology) -> Iterator[SlimeError]:
    """Distributions of their own, which the keys of some runs ask for."""
    cfg, installed = topology.config, plugins.load()
    programs = [each.program for each in (*cfg.data.sets.values(), *cfg.eval.sets.values()) if each.program]
    other = {cfg.rollout.program.name, *programs} != {ProgramConfig.name} and not installed.conversations.names()
    ahead = cfg.rollout.max_staleness and not installed.rollouts.names()
    routing = cfg.observe.routing and "routing-gap" not in installed.explanations.names()
    simple = f"every program but '{ProgramConfig.name}' needs slime-agents"
    for lacks, what, where, wanted in (
        (other, simple, "rollout.program", "conversation/chat-template"),
        (ahead, "generating for steps to come needs slime-filters", "rollout.max_staleness", "rollout/ahead"),
        (routing, "what engines record is read by slime-megatron", "observe.routing", "explanation/routing-gap"),
    ):
        if lacks:
            yield SlimeError(f"{what}, which is not installed", where=where, todo=how_to_get(wanted))


def _version(distribution: str, wanted: str) -> Iterator[SlimeError]:
    found = version(distribution)
    if found.partition("+")[0] != wanted:  # without the builder's own mark, as in 1.0+cu130
        todo = f"Install it: pip install {distribution}=={wanted}."
        yield SlimeError(f"{distribution} {found} is installed, slime is made for {wanted}", todo=todo)


def _listed(names: Sequence[str]) -> str:
    """`a and b are`, or the first few with the number of the others."""
    *first, last = names if len(names) <= MAX_NAMED else [*names[:MAX_NAMED], f"{len(names) - MAX_NAMED} more packages"]
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"
