"""How weights reach the engines, and from whom."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.schema import Device, Placement, SlimeConfig, Transport
from slime.errors import SlimeError
from slime.topology.engines import num_engines
from slime.topology.placement import engine_ranks


def transport_of(cfg: SlimeConfig) -> Transport:
    """How weights reach the engines: `weights.transport`, or what it stands for."""
    if cfg.weights.transport is not Transport.auto:
        return cfg.weights.transport
    return Transport.ipc if _can_share_memory(cfg) else Transport.broadcast


def publishers(cfg: SlimeConfig) -> list[range]:
    """The trainer ranks that hand each engine its weights.

    Those on its own devices, rank i of them to its tensor-parallel rank i on whichever host these are; or else rank 0.
    """
    if cfg.cluster.placement is Placement.colocated and transport_of(cfg) is Transport.ipc:
        ranks = engine_ranks(cfg)
        if ranks and ranks[-1].stop <= cfg.cluster.num_trainers:  # on cpu engines may have more ranks than that
            return ranks
    return [range(1)] * num_engines(cfg)


def sources(cfg: SlimeConfig) -> tuple[int, ...]:
    """The trainer ranks that broadcast, of which rank 0 is the first: `weights.num_sources` of them, as far from each
    other as can be, which is how pipeline stages lie."""
    count = min(cfg.weights.num_sources, cfg.cluster.num_trainers)
    return tuple(number * cfg.cluster.num_trainers // count for number in range(count))


def _can_share_memory(cfg: SlimeConfig) -> bool:
    """Whether every publisher and its engine see the same memory: on GPUs, rank by rank; on cpu, on one host."""
    if cfg.cluster.device is Device.cpu:
        return cfg.cluster.num_nodes == 1
    return cfg.cluster.placement is Placement.colocated


def transport_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Whether `weights.transport` can be kept."""
    chosen, where, todo = transport_of(cfg), "weights.transport", "Leave it out."
    if chosen is Transport.ipc and not _can_share_memory(cfg):
        yield SlimeError("is ipc, but engines and trainers share no memory", where=where, todo=todo)
    colocated = cfg.cluster.placement is Placement.colocated
    if chosen is Transport.broadcast and colocated and cfg.cluster.device is Device.cuda:
        yield SlimeError("is broadcast, but NCCL takes one process a GPU", where=where, todo=todo)
    if cfg.weights.num_sources > 1 and chosen is not Transport.broadcast:
        what = f"is {cfg.weights.num_sources}, but only what is broadcast has several sources"
        yield SlimeError(what, where="weights.num_sources", todo="Leave it out, or set weights.transport=broadcast.")
