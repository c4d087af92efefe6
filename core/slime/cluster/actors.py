"""The two Ray actors of a run, a process each: a trainer rank and the keeper of one SGLang engine.

Both are thin: everything they do lives in the trainer (`slime.train.rank`) and in `slime.engines`. What an actor prints
goes to its own log in the run directory, and SIGUSR1 makes it write its stacks beside it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.checkpoints import examine
from slime.cluster.copy_keeper import Copying, Sources
from slime.engines.scratch import scratch_prefix
from slime.imports import importing
from slime.net import LOOPBACK, LOOPBACK_SETTINGS, Endpoint, Secret, reserved_port
from slime.observe.spans import record, span
from slime.topology.environment import trainer_environment
from slime.topology.placement import process_name
from slime.topology.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slime.digest import FileFacts
    from slime.engines.scratch import Rendezvous
    from slime.engines.software import End, Server
    from slime.train.packing import RankLayout
    from slime.train.rank import Saving, TrainerRank
    from slime.types import Receipt
    from slime.weights.publisher.publisher import Publisher


@dataclass(frozen=True)
class RunInfo:
    """What every actor is told of its run.

    Attributes:
        logs: folder of the run directory.
        key: what the run's engines ask of requests.
        mark: of the run, in the names of everything temporary that it leaves on a host.
        on_one_host: nobody outside this host has to reach the actor or its engine.
    """

    topology: Topology
    logs: Path
    key: Secret
    mark: str
    on_one_host: bool


class Actor:
    """What both actors share: log file and environment."""

    def __init__(self, run: RunInfo, name: str) -> None:
        self.run, self.cfg, self.name, self.log = run, run.topology.config, name, run.logs / f"{name}.log"
        self._meeting = ExitStack()  # holds ports for as long as it lives
        # An engine's process gets its own.
        os.environ.update(trainer_environment(self.cfg.cluster, self.cfg.train.megatron))
        if run.on_one_host:
            os.environ.update({**LOOPBACK_SETTINGS, **os.environ})
        run.logs.mkdir(parents=True, exist_ok=True)
        self._redirect_output()

    def _redirect_output(self) -> None:
        descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def check_in(self) -> tuple[str, str, int]:
        """Ray's node id, host and process id."""
        import ray
        from stack_dumps.dumps import register

        faulthandler.enable()  # a crash is told in the log, with its signal and its stack
        register(self.run.logs / f"{self.name}.stack")
        return ray.get_runtime_context().get_node_id(), socket.gethostname(), os.getpid()

    def ping(self) -> End | None:
        """Answers as soon as the actor is free; to the caller it fails at once when the actor has died.

        Returns:
            How the server that it keeps has ended; None if there is none, or it lives.
        """
        return None

    def host(self) -> str:
        """Address at which the run's other processes reach this one."""
        import ray

        if self.run.on_one_host:
            return LOOPBACK
        return str(ray.util.get_node_ip_address())


class TrainerActor(Actor):
    """One Megatron rank. Every method but those on its place is collective: call it on all ranks."""

    def __init__(self, run: RunInfo, rank: int, world_size: int) -> None:
        super().__init__(run, f"trainer-{rank}")
        self.rank, self.world_size = rank, world_size
        self.trainer: TrainerRank
        self.publisher: Publisher | None = None
        self.saving: Saving | None = None
        self.copying: Copying | None = None

    def meet(self) -> tuple[str, int]:
        """Where the ranks find each other: host and port where this one may listen. On one host a file that is the
        user's alone, and 0: torch's store asks nobody who he is."""
        host = self.host()
        if host != LOOPBACK:
            return host, self._meeting.enter_context(reserved_port(host))
        return f"{tempfile.mkdtemp(prefix=scratch_prefix(self.run.mark))}/ranks", 0

    def device(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]

    def prepare(self) -> None:
        """Import what `start` needs. Takes no device memory, so that an engine may measure meanwhile what is free."""
        with importing():
            from slime.train.rank import trainer_class

            self._make = trainer_class(self.cfg.cluster.device)

    def start(self, master_addr: str, master_port: int, devices: Sequence[str] = ()) -> RankLayout:
        """Join the process groups and build the model, in the place of one that is there. `devices`: of each rank,
        whichever Ray gave it; none: that."""
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices[self.rank]
        if self.cfg.observe.trace:
            record(self.run.logs, self.name)
        self.prepare()
        if hasattr(self, "trainer"):  # of a driver that was killed
            del self.trainer
            self.publisher = self.saving = self.copying = None
            gc.collect()
        self.trainer = self._make(self.cfg, self.rank, self.world_size, master_addr, master_port)
        return self.trainer.layout()

    def is_at_rest(self) -> bool:
        """Whether nothing is being written any more. The answer comes once the calls before have ended."""
        return (not self.saving or self.saving.is_done) and (not self.copying or self.copying.fault is not None)

    def do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the trainer's method of that name returns."""
        with span(method):
            return getattr(self.trainer, method)(*args, **kwargs)

    def publish(self, engines: Sequence[Endpoint | None], version: int, bucket_mb: int | None = None) -> Receipt | None:
        """Gather the weights and hand them to the engines; returns the receipt of those this rank serves.

        Args:
            bucket_mb: instead of `weights.bucket_mb`.
        """
        from slime.weights.publisher.publisher import Publisher

        if self.publisher is None:
            self.publisher = Publisher(self.run.topology, self.trainer, self.host())
        with span("publish", version=version):
            return self.publisher.publish(engines, version, bucket_mb or self.cfg.weights.bucket_mb)

    def begin_save(self, folder: Path) -> None:
        """Copy everything to the host; a thread of this rank writes it into `folder`."""
        with span("begin_save"):
            self.saving = self.trainer.begin_save(folder)

    def has_saved(self) -> bool:
        """Whether `end_save` returns at once."""
        assert self.saving is not None, "one was begun"
        return self.saving.is_done

    def end_save(self) -> dict[str, FileFacts]:
        """Returns the facts of the files that this rank digested as it wrote them, by name, once they are written."""
        assert self.saving is not None, "one was begun"
        saving, self.saving = self.saving, None
        return saving.wait()

    def begin_copy(self, folder: Path, beside: Any) -> None:
        """The same in host memory, where `folder` is; and hand it to the keeper of another host, if there is one."""
        with span("begin_copy"):
            self.copying = Copying(self.trainer.begin_save(folder), folder, self.rank, beside)

    def copied(self) -> str | None:
        """See `Copying.fault`."""
        assert self.copying is not None, "one was begun"
        return self.copying.fault

    def load_copy(self, folder: Path, sources: Sources) -> None:
        """Take a copy up. What of it is not in `folder`, on this host, comes from its sources."""
        with span("load_copy"):
            sources.fetch_small(folder)
            self.trainer.load(folder, sources.open)

    def examine(self, paths: Sequence[Path]) -> list[FileFacts]:
        """This rank's share of reading files whole: every `world_size`-th of them."""
        return examine(paths[self.rank :: self.world_size])


class EngineActor(Actor):
    """Keeps one process of an SGLang engine; generation itself goes over HTTP and never through Ray."""

    def __init__(self, run: RunInfo, index: int, node_rank: int) -> None:
        super().__init__(run, process_name(index, node_rank))
        self.index, self.node_rank = index, node_rank
        self.process: Server | None = None
        self._endpoint: Endpoint | None = None
        self._released: set[str] = set()  # tags of memory that the server does not hold

    def meet(self) -> Rendezvous:
        """Where the engine's other processes find this one, its first."""
        from slime.engines.scratch import open_rendezvous

        return self._meeting.enter_context(open_rendezvous(self.host(), self.run.mark))

    def start(self, devices: Sequence[str], rendezvous: Rendezvous | None) -> Endpoint:
        """Start the server on `devices` (none: those Ray gave) and wait until it answers. One that was started for a
        driver that was killed goes on."""
        from slime.engines.software import software

        if self._endpoint:
            return self._endpoint
        self._released = set()
        is_frozen = self.index >= len(self.run.topology.group_of_engine)
        self.process = software(self.cfg.cluster.device, self.cfg.rollout.backend).server(
            self.run.topology,
            self.index,
            self.node_rank,
            rendezvous,
            host=self.host(),
            log=self.log,
            devices=devices,
            key=None if is_frozen else self.run.key,  # rewards get it, who are not to ask the others
            mark=self.run.mark,
        )
        self._endpoint = self.process.start()
        return self._endpoint

    def release_memory(self, *tags: str) -> None:
        """Release those of `tags` that the server holds."""
        assert self.process
        if held := [tag for tag in tags if tag not in self._released]:
            self.process.release_memory(held)
            self._released |= {*held}

    def resume_memory(self, *tags: str) -> None:
        """Resume those of `tags` that the server does not hold."""
        assert self.process
        if released := [tag for tag in tags if tag in self._released]:
            self.process.resume_memory(released)
            self._released -= {*released}

    def ping(self) -> End | None:
        return self.process.end() if self.process else None

    def end(self) -> End | None:
        """How the server has ended, if it has; one that is about to gets the time to."""
        return self.process.end(waits=True) if self.process else None

    def stop(self) -> None:
        self._meeting.close()
        self._endpoint = None
        if self.process:
            self.process.stop()


def remote(actor: type[Actor], **options: Any) -> Any:
    import ray

    return ray.remote(actor).options(**options)
