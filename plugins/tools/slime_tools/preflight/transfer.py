"""KV caches on their way from prefill to decode hosts: by mooncake's transfer engine, told what SGLang tells it."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from slime.cluster.placement import Slots
from slime.config.schema import Role
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.topology.server_fields import transfer_backend
from slime.topology.topology import Engine, Topology
from slime_tools.preflight.clock import now
from slime_tools.preflight.host_checks import Fault
from slime_tools.preflight.network import GLOO_BYTES, NCCL_BYTES, FailedError, answers_of, slow

if TYPE_CHECKING:
    import torch

FORCE_TCP = "MC_FORCE_TCP"
"""Variable of mooncake, by which SGLang takes `mooncake_tcp` for mooncake without RDMA."""
SETTINGS = "See cluster.ib_devices, and the variables MC_* in cluster.environment (docs/large-recipes.md)."
LISTENS = f"It listens at TCP ports of 15000 to 17000, or of MC_MIN_PRC_PORT to MC_MAX_PRC_PORT. {SETTINGS}"
REACHES = f"Let TCP ports 15000 to 17000 through between the hosts. {SETTINGS}"


@dataclass(frozen=True)
class Place:
    """The memory of one host that others write to.

    Attributes:
        session: host and port where its mooncake answers.
        pointer: address of the first byte.
        way: how bytes get there ("TCP").
    """

    session: str
    pointer: int
    way: str


class Mover:
    """mooncake's engine in a process of one host, as a rank of an inference engine has it. On GPUs it has one of them,
    and moves that one's memory.

    Args:
        environment: of the inference engine.
        devices: RDMA devices, separated by commas (`disaggregation_ib_device`).
    """

    def __init__(self, environment: Mapping[str, str], devices: str, *, on_gpus: bool) -> None:
        os.environ.update(environment)
        self._device = "cuda" if on_gpus else "cpu"
        self._protocol = os.environ.get("MOONCAKE_PROTOCOL", "rdma")  # these three as SGLang's MooncakeTransferEngine
        is_tcp = FORCE_TCP in os.environ or self._protocol == "tcp"
        self._names = "" if os.environ.get(FORCE_TCP) == "1" else devices
        self._way = "TCP" if is_tcp else f"{self._protocol.upper()} ({self._names})"
        self._wants_rdma = self._protocol == "rdma" and not is_tcp

    def start(self, address: str = "") -> Place:
        """Listen, with memory that others may write to and memory to be sent.

        Args:
            address: of this host; empty: at which Ray's other hosts know it.

        Raises:
            SlimeError: mooncake does not start, finds no such device, or cannot use the memory.
        """
        import torch
        from mooncake.engine import TransferEngine

        if not address:
            import ray

            address = ray.util.get_node_ip_address()
        self._engine = TransferEngine()
        if code := self._engine.initialize(address, "P2PHANDSHAKE", self._protocol, self._names):
            raise SlimeError(f"mooncake does not start at {address} over {self._way} ({code})", todo=LISTENS)
        if self._wants_rdma and (missing := self._missing()):
            what = f"mooncake finds no RDMA device {', '.join(missing)}, and would send by TCP"
            todo = "See 'ibv_devinfo' there, whether its container has /dev/infiniband, and cluster.ib_devices."
            raise SlimeError(what, todo=todo)
        torch.seed()  # no two hosts send the same
        size = NCCL_BYTES if self._device == "cuda" else GLOO_BYTES
        self._sent = torch.randint(256, (size,), dtype=torch.uint8, device=self._device)
        self._got = torch.zeros_like(self._sent)
        for buffer in (self._sent, self._got):
            if code := self._engine.register_memory(buffer.data_ptr(), buffer.nbytes):
                what = f"mooncake cannot use {human_bytes(size)} of {self._device}'s memory over {self._way} ({code})"
                todo = "See 'ulimit -l' there, and on GPUs whether the module nvidia_peermem is loaded."
                raise SlimeError(what, todo=todo)
        now(self._device)
        self._digest = _digest(self._sent)
        return Place(f"{address}:{self._engine.get_rpc_port()}", self._got.data_ptr(), self._way)

    def _missing(self) -> list[str]:
        """The devices that mooncake does not find: of that it says nothing, and takes TCP."""
        by_memory = json.loads(self._engine.get_local_topology(self._names))
        found = {name for preferred, others in by_memory.values() for name in (*preferred, *others)}
        return [name for name in self._names.split(",") if name not in found]

    def write(self, other: Place) -> tuple[float, str]:
        """Send this host's bytes to the memory of another.

        Returns:
            Bytes a second, and their digest.

        Raises:
            SlimeError: mooncake sends none.
        """
        self._write(other)  # opens the connections
        start = now(self._device)
        self._write(other)
        return self._sent.nbytes / (now(self._device) - start), self._digest

    def _write(self, other: Place) -> None:
        code = self._engine.transfer_sync_write(other.session, self._sent.data_ptr(), other.pointer, self._sent.nbytes)
        if code:
            raise SlimeError(f"nothing arrives at {other.session} over {self._way} ({code})", todo=REACHES)

    def check(self, digest: str) -> None:
        """Compare what has arrived with what was sent, and make room for the next.

        Raises:
            SlimeError: it is something else.
        """
        arrived = _digest(self._got)
        self._got.zero_()
        now(self._device)
        if arrived != digest:
            raise SlimeError("other bytes arrive than were sent", todo="See the network's counters of errors.")


def _digest(buffer: torch.Tensor) -> str:
    return hashlib.sha256(buffer.cpu().numpy().tobytes()).hexdigest()


def meetings(num_from: int, num_to: int) -> list[list[tuple[int, int]]]:
    """Rounds in which every prefill host sends to every decode host once, and no host sends or receives twice at a
    time."""
    num_rounds = max(num_from, num_to)
    return [
        [(one, (one + shift) % num_rounds) for one in range(num_from) if (one + shift) % num_rounds < num_to]
        for shift in range(num_rounds)
    ]


@dataclass(frozen=True)
class Transfers:
    """Bytes a second from each prefill host to each decode host, or what kept them from being measured.

    Attributes:
        rates: by name of the prefill host and of the decode host.
        way: how they went ("TCP").
        faults: by host.
    """

    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    way: str = ""
    faults: Mapping[str, Fault] = field(default_factory=dict)

    def facts(self, host: str) -> dict[str, str]:
        """A line for each host that this one sends to."""
        return {
            f"to {to}": f"{human_bytes(rate)}/s of KV caches by mooncake over {self.way}"
            for (sender, to), rate in self.rates.items()
            if sender == host
        }

    def slow(self) -> dict[str, str]:
        """A note for each host whose transfers are far slower than the median host's."""
        of_host: dict[str, list[float]] = {}
        for pair, rate in self.rates.items():
            for host in set(pair):
                of_host.setdefault(host, []).append(rate)
        medians = {host: statistics.median(rates) for host, rates in of_host.items()}
        return slow(medians, "its transfers of KV caches carry", SETTINGS)


def measure_transfers(topology: Topology, slots: Slots, names: Mapping[str, str]) -> Transfers:
    """Have every prefill host write to every decode host, as many at a time as there are pairs of them.

    Args:
        names: of the hosts, by Ray's id.
    """
    import ray

    movers = {role: _movers(topology, slots, names, role) for role in (Role.prefill, Role.decode)}
    senders, receivers = movers[Role.prefill], movers[Role.decode]
    everyone = {(role, host): mover for role, of_role in movers.items() for host, mover in of_role.items()}
    rates: dict[tuple[str, str], float] = {}
    try:
        places = answers_of({at: mover.start.remote() for at, mover in everyone.items()}, "start mooncake", LISTENS)
        for meeting in meetings(len(senders), len(receivers)):
            pairs = [([*senders][one], [*receivers][other]) for one, other in meeting]
            try:
                sent = answers_of(
                    {pair: senders[pair[0]].write.remote(places[Role.decode, pair[1]]) for pair in pairs},
                    "send it",
                    REACHES,
                )
                answers_of(
                    {pair: receivers[pair[1]].check.remote(sent[pair][1]) for pair in pairs}, "check it", REACHES
                )
            except FailedError as failed:
                return Transfers(faults=_of_senders(failed.faults))
            rates |= {pair: rate for pair, (rate, _) in sent.items()}
    except FailedError as failed:
        return Transfers(faults={host: fault for (_, host), fault in failed.faults.items()})
    finally:
        for mover in everyone.values():
            ray.kill(mover)
    return Transfers(rates, next(iter(places.values())).way)


def _of_senders(faults: Mapping[tuple[str, str], Fault]) -> dict[str, Fault]:
    return {
        sender: replace(fault, what=f"no KV cache gets from it to {to} by mooncake: {fault.what}")
        for (sender, to), fault in faults.items()
    }


def _movers(topology: Topology, slots: Slots, names: Mapping[str, str], role: Role) -> dict[str, Any]:
    """One for each host that an engine of this role is on, by name."""
    from ray.util.placement_group import placement_group_table

    import ray

    nodes = placement_group_table(slots.group)["bundles_to_node_id"]
    on_gpus, actor, found = topology.cluster.on_gpus, ray.remote(Mover), dict[str, Any]()
    for engine, group, of_engine in zip(topology.engines, topology.group_of_engine, slots.engines, strict=False):
        if engine.role is not role:
            continue
        forced = {FORCE_TCP: "1"} if transfer_backend(group) == "mooncake_tcp" else {}
        for slot in of_engine:
            host = names[nodes[slots.places.bundle(slot.bundle)]]
            options = slots.options(replace(slot, num_cpus=0.0, num_gpus=float(on_gpus)))
            if host not in found:
                found[host] = actor.options(**options).remote(
                    forced | {**engine.environment}, _devices(engine), on_gpus=on_gpus
                )
    return found


def _devices(engine: Engine) -> str:
    return str(engine.fields.get("disaggregation_ib_device") or engine.fields.get("mooncake_ib_device") or "")
