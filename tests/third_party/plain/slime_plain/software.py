"""What slime asks of the engine `plain` (`slime.engines.software`): a server as a process, and a client."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from slime.config.paths import resolve
from slime.engines.scratch import how_ended
from slime.engines.software import End
from slime.errors import Death, SlimeError
from slime.net import Endpoint, hand_over, new_key, reserved_port


class Plain:
    def server(self, topology, index=0, node_rank=0, rendezvous=None, **options):
        if topology.cluster.on_gpus or rendezvous or index >= len(topology.engines):
            what = "is one process on a CPU, for the model that is trained"
            raise SlimeError(what, where="rollout.backend=plain", todo="Set cluster=local, without rollout.engines.")
        return Process(topology, index, **options)

    def client(self, endpoint, timeout_s, *, log=None):
        from slime_plain.client import Client

        return Client(endpoint, timeout_s, log)

    async def pairs(self, roles, clients):
        raise SlimeError("has no prefill and decode engines", where="rollout.backend=plain", todo="Set no roles.")

    async def require_room(self, clients, cfg):
        """Nothing is kept back: a sequence may have as many tokens as the model has positions, which slime looks at."""

    def require_transfer(self, device):
        raise SlimeError("has no prefill and decode engines", where="rollout.backend=plain", todo="Set no roles.")


class Process:
    """A server, which leads a process group and ends soon after whoever started it."""

    def __init__(self, topology, index, *, host, log, devices=(), key=None, mark=""):
        self.endpoint, self.log = Endpoint("", key or new_key()), log
        self._host, self._limit_s = host, topology.cluster.start_timeout_s
        self._folder, self._environment = resolve(topology.config.model.path), topology.engines[index].environment
        self._where, self._process = f"engine {index}", None

    @property
    def pid(self):
        return self._process.pid

    def start(self):
        with reserved_port(self._host) as port, self.log.open("ab") as log:
            self.endpoint = Endpoint(f"http://{self._host}:{port}", self.endpoint.key)
            command = [sys.executable, "-m", "slime_plain.server", self._folder, self._host, str(port)]
            self._process = subprocess.Popen(
                [*command, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
            hand_over(self.endpoint.key, self._process)
            self._wait(port)
        return self.endpoint

    def _wait(self, port):
        deadline = time.monotonic() + self._limit_s
        while time.monotonic() < deadline:
            if end := self.end():
                raise Death(end.error.what, where=end.error.where, todo=end.error.todo) if end.killed else end.error
            with suppress(OSError), socket.create_connection((self._host, port), 1):
                return
            time.sleep(0.1)
        self.stop()
        raise SlimeError(f"not up after {self._limit_s:g} s", where=self._where, todo=f"Read {self.log}.")

    def end(self, *, waits=False):
        if self._process is None or (code := self._process.poll()) is None:
            return None
        return End(code < 0, time.time(), SlimeError(how_ended(code), where=self._where, todo=f"Read {self.log}."))

    def release_memory(self, tags):
        """A CPU's memory goes to whoever needs it."""

    def resume_memory(self, tags):
        """Likewise."""

    def stop(self):
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


PLAIN = Plain()
