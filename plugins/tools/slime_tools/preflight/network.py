"""How fast the hosts of a run exchange data: a process on each, which meet as trainers do, over gloo or NCCL."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from slime.cluster.placement import Slot, Slots
from slime.errors import SlimeError
from slime.files import human_bytes
from slime.net import join_store, serve_store
from slime.topology.environment import trainer_environment
from slime.topology.topology import Topology
from slime_tools.preflight.clock import now
from slime_tools.preflight.host_checks import Fault

LIMIT_S = 120.0
"""For each part: hosts import torch, meet, and exchange."""
GLOO_BYTES, NCCL_BYTES = 32 * 2**20, 512 * 2**20
"""Of a message: large enough that the first packets do not count."""
MOST_ROUNDS = 9
"""Each host exchanges with as many others at most."""
WAY_OUT = "See cluster.socket_interface, and NCCL_IB_HCA in cluster.environment (docs/large-recipes.md)."
SLOW = 0.5
"""A host is named whose exchanges reach less than this share of the median host's."""
K = TypeVar("K")


class Peer:
    """The process of one host. On GPUs it has one of them, and so measures the link that this one takes.

    Args:
        environment: of a trainer rank.
    """

    def __init__(self, environment: Mapping[str, str], *, on_gpus: bool) -> None:
        os.environ.update(environment)
        self._device = "cuda" if on_gpus else "cpu"
        self._store: Any = None

    def serve(self) -> tuple[str, int]:
        """Where the others find each other."""
        import ray

        self._store = serve_store(ray.util.get_node_ip_address(), timeout=timedelta(seconds=LIMIT_S))
        return self._store.host, self._store.port

    def join(self, rank: int, world_size: int, where: tuple[str, int]) -> float:
        """Collective. Returns the bandwidth of an all-reduce over all, in bytes a second that each host sends."""
        import torch
        import torch.distributed as dist

        timeout = timedelta(seconds=LIMIT_S)
        store = self._store or join_store(*where, timeout)
        backend = "nccl" if self._device == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
        size = NCCL_BYTES if self._device == "cuda" else GLOO_BYTES
        self._sent, self._got = torch.ones(2, size // 4, device=self._device)
        dist.all_reduce(self._got)  # opens the connections
        seconds = self._timed(lambda: dist.all_reduce(self._got))
        return float(2 * (world_size - 1) / world_size * self._sent.nbytes / seconds)

    def exchange(self, partners: Sequence[int | None]) -> list[float | None]:
        """Send and receive with each of the partners, one after the other, as these do with this one (None: pause).
        Bytes a second of one direction; collective."""
        return [self._exchanged(partner) for partner in partners]

    def dispatch(self) -> float:
        """Collective: `slime_tools.preflight.experts.exchange_tokens` of all hosts."""
        import torch.distributed as dist

        from slime_tools.preflight.experts import exchange_tokens

        return exchange_tokens(dist.get_rank(), dist.get_world_size(), self._device)

    def _exchanged(self, partner: int | None) -> float | None:
        import torch.distributed as dist

        def once() -> None:
            both = (dist.P2POp(dist.isend, self._sent, partner), dist.P2POp(dist.irecv, self._got, partner))
            for work in dist.batch_isend_irecv([*both]):
                work.wait()

        dist.barrier()
        if partner is None:
            return None
        once()  # opens the connection
        return float(self._sent.nbytes / self._timed(once))

    def _timed(self, work: Callable[[], object]) -> float:
        start = now(self._device)
        work()
        return now(self._device) - start


def rounds(num_hosts: int) -> list[list[int | None]]:
    """A tournament in which every two meet once: in each round, the partner of every host; None: it pauses."""
    places = [*range(num_hosts), *([None] if num_hosts % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        pairs = zip(places[: len(places) // 2], reversed(places), strict=False)
        partner = {host: other for pair in pairs for host, other in (pair, pair[::-1])}
        found.append([partner[host] for host in range(num_hosts)])
        places = [places[0], places[-1], *places[1:-1]]
    return found


def slow(rates: Mapping[str, float], carries: str = "its network carries", todo: str = WAY_OUT) -> dict[str, str]:
    """A note for each host that is far slower than the median one, by bytes a second of each."""
    median = statistics.median([*rates.values()] or [0.0])
    return {
        host: f"{carries} {human_bytes(rate)} a second, the median host's {human_bytes(median)}. {todo}"
        for host, rate in rates.items()
        if rate < SLOW * median
    }


@dataclass(frozen=True)
class Network:
    """Bytes a second of one direction, or what kept them from being measured.

    Attributes:
        rates: of each host with another one, in the median of those that it exchanged with.
        collective: that each host sends in an all-reduce of all of them.
        experts: the same of tokens on their way to experts of all hosts and back; None: the model has none.
        faults: by host.
    """

    rates: Mapping[str, float]
    collective: float
    experts: float | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)


def measure(topology: Topology, slots: Slots, names: Mapping[str, str], *, with_experts: bool) -> Network:
    """Have the hosts exchange data: all together, two and two, and as a model with experts does.

    Args:
        names: of the hosts, by Ray's id.
    """
    from ray.util.placement_group import placement_group_table

    import ray

    on_gpus, train = topology.cluster.on_gpus, topology.config.train
    environment = trainer_environment(topology.cluster, train.megatron)
    bundles = {node: bundle for bundle, node in placement_group_table(slots.group)["bundles_to_node_id"].items()}
    actor = ray.remote(Peer)
    peers = {
        names[node]: actor.options(**slots.options(Slot(bundle, 0.0, float(on_gpus)))).remote(
            environment, on_gpus=on_gpus
        )
        for node, bundle in bundles.items()
    }
    first, plan = next(iter(peers)), rounds(len(peers))[:MOST_ROUNDS]
    try:
        where = answers_of({first: peers[first].serve.remote()})[first]
        joined = answers_of(
            {host: peer.join.remote(rank, len(peers), where) for rank, (host, peer) in enumerate(peers.items())}
        )
        partners = {host: [of_round[rank] for of_round in plan] for rank, host in enumerate(peers)}
        rates = answers_of({host: peer.exchange.remote(partners[host]) for host, peer in peers.items()})
        dispatched = answers_of({host: peer.dispatch.remote() for host, peer in peers.items()}) if with_experts else {}
    except FailedError as failed:
        return Network({}, 0.0, faults=failed.faults)
    finally:
        for peer in peers.values():
            ray.kill(peer)
    medians = {host: statistics.median(rate for rate in found if rate) for host, found in rates.items()}
    return Network(medians, min(joined.values()), min(dispatched.values(), default=None))


class FailedError(Exception):
    """Some of those that were asked have no answer."""

    def __init__(self, faults: Mapping[Any, Fault]) -> None:
        super().__init__()
        self.faults = faults


def answers_of(
    asked: Mapping[K, Any], what: str = "exchange data with the others", todo: str = WAY_OUT
) -> dict[K, Any]:
    """Answers of all, by what they are asked under.

    Args:
        what: they are asked to do.
        todo: where one does not do it.

    Raises:
        FailedError: with the fault of each that has none.
    """
    import ray

    ray.wait(list(asked.values()), num_returns=len(asked), timeout=LIMIT_S)
    found, faults = {}, {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer, timeout=0)
        except SlimeError as problem:  # of what was asked; Ray's own errors are below
            faults[name] = Fault(problem.what, problem.todo)
        except ray.exceptions.GetTimeoutError:
            faults[name] = Fault(f"it did not {what} within {LIMIT_S:g} s", todo)
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[-1]
            faults[name] = Fault(f"it could not {what}: {why}", todo)
    if faults:
        raise FailedError(faults)
    return found
