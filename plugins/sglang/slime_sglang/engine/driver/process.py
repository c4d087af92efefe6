"""An SGLang server as a process of its own: its fields, its start, its end.

Engines start from `config.json` alone with dummy weights; real ones arrive by `slime.weights.publisher.publish`. An
engine over several hosts is such a process on each: the first answers requests, the others only say that they are up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from io import BufferedWriter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from slime.config.schema import Role
from slime.engines.scratch import ChildEnd, Rendezvous, clear, how_ended, scratch_prefix
from slime.engines.software import End
from slime.errors import Death, NoAnswer, SlimeError
from slime.net import LOOPBACK, LOOPBACK_SETTINGS, Endpoint, Secret, hand_over, new_key, reserved_port
from slime.topology.placement import process_name
from slime.topology.topology import Topology
from slime_sglang.engine.driver.kv_transfer import require_mooncake
from stack_dumps.dumps import look

LAUNCHER = "slime_sglang.engine.launcher"
"""The module that runs one SGLang server: `python -m MODULE FIELD=JSON ...`."""
POLL_S = 0.1
PORT_ATTEMPTS = 3
PORT_TAKEN = re.compile("address already in use|port.* is not available in", re.IGNORECASE)
"""Words of uvicorn, after which SGLang neither serves nor ends; and SGLang's of the further ports that data-parallel
attention needs, which it counts from that one."""
KILLS_ITSELF = "kill_process_tree called: parent_pid={pid}, include_parent=True"
"""Words of SGLang before it does, as when one of its processes failed because that of another host had ended."""
TAIL_LINES, TAIL_CHARACTERS = 5, 400
DYING_S = 3.0
"""From the death of one of SGLang's processes to the end of the server."""
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: .*\n(?:[ \t]+.*\n?)?", re.M)
"""Of Python, with its line of source."""
_USUAL = re.compile(
    r"(Prefill|Decode) batch|Bucket \d+ of|were replayed|Cache flushed|HTTP/1|plugin| hook(\(s\)|s on) "
    r"|Received sigquit|kill_process_tree called|^process \d+ (was|ended) |^the server (failed:|ends for this)$"
)
"""What a log says of work that goes well, and of an end that has its reason in the lines above."""
_FAILED = re.compile(r"^the server failed:\n(.*?)^the server ends for this$", re.M | re.S)  # by the launcher


def server_args(fields: Mapping[str, Any]) -> list[str]:
    """Fields of `ServerArgs` as arguments of `LAUNCHER`, `field=<JSON>` each: SGLang's own flags cannot say false where
    the default is true."""
    return [f"{name}={json.dumps(value)}" for name, value in fields.items()]


class EngineProcess:
    """One SGLang server, from start to stop. It ends with the process that started it, however that ends.

    Args:
        topology: of the run.
        index: which engine of it, counted over all groups.
        node_rank: which process of the engine, one a host.
        rendezvous: of an engine over several hosts.
        host: address it listens on.
        log: file its output is appended to.
        devices: CUDA devices it uses, as CUDA_VISIBLE_DEVICES names them; empty: those of this process.
        key: what requests must carry; None: one of its own.
        mark: of the run, in the names of everything temporary that it leaves on the host.
    """

    def __init__(
        self,
        topology: Topology,
        index: int = 0,
        node_rank: int = 0,
        rendezvous: Rendezvous | None = None,
        *,
        host: str,
        log: Path,
        devices: Sequence[str] = (),
        key: Secret | None = None,
        mark: str = "",
    ) -> None:
        self.engine, self.host, self.log = topology.every_engine[index], host, log
        self.devices, self.mark, self._device = devices, mark, topology.cluster.device
        self._start_timeout_s = topology.cluster.start_timeout_s
        self._request_timeout_s = topology.config.rollout.request_timeout_s
        self.node_rank, self.rendezvous = node_rank, rendezvous
        self.endpoint = Endpoint("", key or new_key())
        self._process: subprocess.Popen[bytes]
        self._waiting: threading.Thread
        self._scratch = ""
        self._log_start = 0
        self._ended_at: float | None = None
        self._is_up = False

    def start(self) -> Endpoint:
        """Start the server and wait until it answers.

        Raises:
            Death: it was killed.
            SlimeError: it ended by itself, or was not up within `cluster.start_timeout_s` seconds.
        """
        deadline = time.monotonic() + self._start_timeout_s
        if self.engine.role is not Role.regular:
            require_mooncake(self._device)
        num_attempts = 1 if self.rendezvous else PORT_ATTEMPTS  # the others would have to start again, too
        for attempt in range(num_attempts):
            with reserved_port(self.host) as port, reserved_port(self.host) as bootstrap_port:
                self._spawn(port, bootstrap_port)
                try:
                    if self._is_ready(deadline):
                        self._is_up = True
                        if not self.node_rank:
                            self._post("/freeze_gc")  # or some step waits while a collection goes through all of it
                        return self.endpoint
                except BaseException as error:
                    end = self.end(waits=isinstance(error, SlimeError))
                    self.stop()
                    if end and end.killed:
                        raise self._error(end.error.what, end.error.todo, Death) from error
                    raise
            is_taken = PORT_TAKEN.search(self._output()) and attempt < num_attempts - 1
            died = None if is_taken else self._died()
            self.stop()
            if died:
                raise died
        raise AssertionError("the last attempt returns or raises")

    def _spawn(self, port: int, bootstrap_port: int) -> None:
        self.endpoint = replace(self.endpoint, url=f"http://{self.host}:{port}")
        self._scratch = tempfile.mkdtemp(prefix=scratch_prefix(self.mark))
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._ended_at, self._is_up = None, False
        arguments = server_args(self.fields(port, bootstrap_port))
        with self.log.open("ab") as log:
            self._process = self.launch(arguments, self.environment(self._scratch), log)
        hand_over(self.endpoint.key, self._process)
        self._waiting = threading.Thread(target=self._await_end, args=(self._process,), daemon=True)
        self._waiting.start()

    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: BufferedWriter
    ) -> subprocess.Popen[bytes]:
        """The server as a process that leads a group, and reads its key from its standard input."""
        return subprocess.Popen(
            [sys.executable, "-m", LAUNCHER, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # one group to kill, and Ctrl-C reaches the driver alone
        )

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        if process is self._process:  # and not one that was replaced, for a port that was taken
            self._ended_at = time.time()

    def fields(self, port: int, bootstrap_port: int) -> dict[str, Any]:
        """The topology's fields and the addresses: it answers at `port`, and a prefill engine's decode engines ask it
        at `bootstrap_port` for the rest."""
        fields = {**self.engine.fields, "host": self.host, "port": port}
        if self.rendezvous:
            fields |= {"node_rank": self.node_rank, "dist_init_addr": self.rendezvous.address}
        if self.engine.role is Role.prefill:
            fields["disaggregation_bootstrap_port"] = bootstrap_port
        return fields

    def environment(self, scratch: str) -> dict[str, str]:
        """The topology's variables, and those that put SGLang's sockets into `scratch`, a folder that we remove."""
        ours = self.engine.environment
        settings = {"TMPDIR": scratch, "SLIME_ENGINE_SCRATCH": scratch, "SLIME_ENGINE_PARENT": str(os.getpid())}
        settings["SLIME_ENGINE_STACKS"] = str(self.log.absolute().with_suffix(""))
        settings["SGLANG_HOST_IP"] = self.host  # where its ranks, and the other side of a pair, look for it
        settings["no_proxy"] = "*"  # it asks engines of this run alone, which no proxy knows
        if self.devices:
            settings["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices)
        if self.host != LOOPBACK:
            return {**os.environ, **ours, **settings}
        # Its ranks find each other in a file, too: a port would be open to everybody, on every interface.
        file = self.rendezvous.file if self.rendezvous else f"{scratch}/ranks"
        settings["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] = f"file://{file}"
        return {**LOOPBACK_SETTINGS, **os.environ, **ours, **settings}

    def _is_ready(self, deadline: float) -> bool:
        """True once it answers, False if it ended before or found its port taken."""
        while self._process.poll() is None and not PORT_TAKEN.search(self._output()):
            if _answers(self.endpoint, "/health" if self.node_rank else "/model_info"):
                return True
            if time.monotonic() > deadline:
                output = self._output()
                self._log_stacks()
                raise self._error(
                    f"not up after {self._start_timeout_s:g} s; its log ends: {_tail(output)}",
                    f"Read {self.log}, which ends with its stacks, or raise cluster.start_timeout_s.",
                )
            time.sleep(POLL_S)
        return False

    def _log_stacks(self) -> None:
        seen = look([self.pid], self.log.parent)
        with self.log.open("a") as log:
            log.write("\n\n".join(str(each) for each in seen if each.name.startswith(self.log.stem)) + "\n")

    def end(self, *, waits: bool = False) -> End | None:
        """How it has ended; None if it lives. `waits` gives one that is about to end the time to."""
        if not self._scratch:  # not started, or stopped
            return None
        self._waiting.join(DYING_S if waits else 0.0)
        if self._ended_at is None:
            return None
        output, how, at = self._output(), how_ended(self._process.returncode), self._ended_at
        killed = "was killed by" in how and KILLS_ITSELF.format(pid=self.pid) not in output
        if child := ChildEnd.first(output):
            how, at = f"{how}: process {child.pid} {child.how}", child.at
            killed = "was killed by" in child.how and KILLS_ITSELF.format(pid=self.pid) not in child.before(output)
        if not self._is_up:
            how = f"{how}, as it started"
        todo = f"Read {self.log} (a kill for memory leaves no line there: see dmesg), then resume the run."
        said = "" if "SIGKILL" in how else f"; its log ends: {_tail(output)}"  # who is killed so has no time for words
        return End(killed and "SIGABRT" not in how, at, self._error(f"{how}{said}", todo))

    def release_memory(self, tags: Sequence[str]) -> None:
        """Give the device memory behind SGLang's `tags` back, once the last request has left the engine."""
        self._post(f"/flush_cache?timeout={self._request_timeout_s:g}")
        self._post("/release_memory_occupation", {"tags": list(tags)})

    def resume_memory(self, tags: Sequence[str]) -> None:
        """Take the device memory behind `tags` again; what it held is lost."""
        self._post("/resume_memory_occupation", {"tags": list(tags)})

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            _request(self.endpoint, path, self._request_timeout_s, json.dumps(body or {}).encode())
        except (OSError, HTTPException) as error:
            kind = NoAnswer if isinstance(error, TimeoutError) else SlimeError
            raise self._error(f"no answer to {path}: {error}", f"Read {self.log}.", kind) from error

    @property
    def pid(self) -> int:
        """Id of the process, and of the group of all that the engine started."""
        return self._process.pid

    def stop(self) -> None:
        """Kill the server and all its workers: it holds nothing worth a goodbye."""
        if not self._scratch:
            return
        _kill_group(self._process)
        clear(self._scratch)
        self._scratch = ""

    def _output(self) -> str:
        """What this attempt has written to the log."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _died(self) -> SlimeError:
        """As it started. What it ended by itself for would come again, another kill may not."""
        end = self.end(waits=True)
        if end and end.killed:
            return self._error(end.error.what, end.error.todo, Death)
        what = f"ended before it answered; its log ends: {_tail(self._output())}"
        return self._error(what, f"Read {self.log}; `rollout.sglang` holds SGLang's arguments.")

    def _error(self, what: str, todo: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        return kind(what, where=self._where, todo=todo)

    @property
    def _where(self) -> str:
        """Of several processes only the first has an address that others know."""
        name, pid = process_name(self.engine.index, self.node_rank), f"pid {self.pid}"
        if not self.rendezvous:
            return f"{name} ({pid}, {self.endpoint})"
        return f"{name} (node_rank {self.node_rank}, {pid} on {socket.gethostname()})"


def _kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a process and the group that it leads, and give them time to die: memory takes a while to free."""
    with contextlib.suppress(ProcessLookupError):  # none of them is left
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    deadline = time.monotonic() + DYING_S
    while _lives(leader.pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _lives(group: int) -> bool:
    """Whether a process of the group is more than a zombie, which it stays until somebody else reaps it."""
    for process in psutil.process_iter(["status"]):
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                return True
    return False


def _answers(endpoint: Endpoint, path: str) -> bool:
    try:
        _request(endpoint, path, 5)
        return True
    except (OSError, HTTPException):  # not listening yet, or still starting
        return False


def _request(endpoint: Endpoint, path: str, timeout_s: float, body: bytes | None = None) -> None:
    """Ask the engine straight: urllib would ask the proxy that `http_proxy` names. Raises OSError or HTTPException
    where there is no answer, or one that is not OK."""
    with contextlib.closing(HTTPConnection(urlsplit(endpoint.url).netloc, timeout=timeout_s)) as connection:
        headers = endpoint.headers | {"Content-Type": "application/json"}
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        if response.status != HTTPStatus.OK:
            raise OSError(f"HTTP status {response.status}")


def _tail(output: str) -> str:
    """The end of a log, in a line that can be read."""
    if (failed := _FAILED.search(output)) and not ChildEnd.first(output):  # whose end would be the reason
        output = failed[1]
    told = _WARNING.sub("", output).splitlines()
    lines = [line.strip() for line in told if line.strip() and not _USUAL.search(line)]
    tail = " | ".join(lines[-TAIL_LINES:]) or "(with nothing that tells why)"
    return tail if len(tail) <= TAIL_CHARACTERS else f"... {tail[-TAIL_CHARACTERS:]}"
