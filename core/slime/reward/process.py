"""The service's end of one worker: start it, ask it, kill it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from typing import IO

from slime import plugins
from slime.errors import SlimeError
from slime.reward import wire
from slime.reward.worker import Setup
from slime.types import Sample, Verdict

START_TIMEOUT_S = 120.0
"""Seconds a worker may take to import the plugins and create its reward."""
END_TIMEOUT_S = 5.0
"""Seconds a guard may take to kill what is below it; only a process stuck in the kernel takes longer than 0.1."""

# A fresh interpreter with this one's import path: neither forked (this process has threads) nor running its `__main__`.
_BOOT = "import sys; sys.path[:] = {path!r}; from slime.reward.worker import main; main({fd})"


class WorkerProcess:
    """One worker; `fresh` until its first message has been read, `reusable` unless it died or owes an answer."""

    def __init__(self, setup: Setup, log: IO[bytes] | int) -> None:
        self._setup = setup
        self._sock, theirs = socket.socketpair()
        with theirs:
            boot = _BOOT.format(path=sys.path, fd=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is the driver's to handle
            )
        self._sock.sendall(wire.frame(setup))
        self._sock.setblocking(False)
        self.fresh, self.reusable = True, True

    def wait_until_ready(self) -> None:
        """Block until the reward exists.

        Raises:
            SlimeError: it cannot be created, or the worker died or hung meanwhile.
        """
        self._sock.settimeout(START_TIMEOUT_S)
        try:
            self._started(wire.receive(self._sock))
        except (EOFError, TimeoutError) as error:
            raise self._not_started(error) from error
        finally:
            self._sock.setblocking(False)

    async def judge(self, sample: Sample, timeout_s: float) -> Verdict:
        """The verdict on one sample; afterwards the worker is `reusable`, or has to be replaced."""
        try:
            await self._until_ready()
        except SlimeError as error:
            self.reusable = False
            return Verdict.error(f"the reward could not be created again: {error}")
        self.reusable = False
        try:
            async with asyncio.timeout(timeout_s):
                verdict, self.reusable = await self._ask(sample)
        except TimeoutError:
            return Verdict.timeout(f"no verdict within reward.timeout_s={timeout_s:g} s")
        except (EOFError, ConnectionError):
            return Verdict.error(f"the reward's process {self._cause_of_death()}")
        return verdict

    async def _ask(self, sample: Sample) -> tuple[Verdict, bool]:
        await asyncio.get_running_loop().sock_sendall(self._sock, wire.frame(sample))
        answer: tuple[Verdict, bool] = await wire.receive_async(self._sock)
        return answer

    async def _until_ready(self) -> None:
        if not self.fresh:
            return
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self._started(await wire.receive_async(self._sock))
        except (EOFError, TimeoutError) as error:
            raise self._not_started(error) from error

    def _started(self, answer: SlimeError | None) -> None:
        if answer is not None:
            raise answer
        self.fresh = False

    def _not_started(self, error: Exception) -> SlimeError:
        late = isinstance(error, TimeoutError)
        what = f"took longer than {START_TIMEOUT_S:g} s" if late else self._cause_of_death()
        name = self._setup.name
        brought_by = plugins.load().rewards.get(name)
        return SlimeError(
            f"reward '{name}' cannot be created: its process {what}",
            where=f"plugin {brought_by.distribution} {brought_by.version}",
            todo=f"Run slime.plugins.load().rewards.create('{name}') in a Python shell to see why.",
        )

    def hang_up(self) -> None:
        """Tell the guard to kill everything below it; whoever waits for an answer gets EOFError."""
        self._sock.shutdown(socket.SHUT_RDWR)

    def retire(self) -> None:
        """Kill the worker without waiting; nobody may be waiting for its answer."""
        self.hang_up()
        self._sock.close()

    @property
    def ended(self) -> bool:
        """Whether the worker and all that it started are gone."""
        return self._process.poll() is not None

    def wait(self) -> int:
        """Wait, after `hang_up`, until nothing of the worker is left; its exit code, or minus the signal's number."""
        try:
            return self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _cause_of_death(self) -> str:
        self.hang_up()
        code = self.wait()
        if code >= 0:
            return f"exited with code {code}"
        hint = " (the kernel sends it when the machine is out of memory)" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{hint}"
