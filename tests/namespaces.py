"""Several hosts on one machine, joined by a bridge: a network, a /dev/shm and a name of its own each, and the processes
of all but the first apart. The file system is shared, as a cluster's is. Needs root with the rights of a host.

Where sshd is installed, the other hosts serve it and `ssh` is the real client. Elsewhere a script stands in for the
client, and for it alone: it enters the namespaces of the host it is told, with a bare environment as sshd gives, runs
the command and hands standard input through.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slime_testing.patience import Patience, family

TOOLS = ("ip", "unshare", "nsenter", "mount", "hostname")
BARE = ("env", "-i", f"HOME={Path.home()}", "PATH=/usr/bin:/bin")
STAND_IN = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
exec nsenter --target "$(cat '{folder}'/"$2".pid)" --net --pid --mount --uts {bare} sh -c "$3"
"""
CLIENT = """#!/bin/sh
exec {ssh} -i '{folder}/key' -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "$@"
"""
SERVER = (
    "-D -e -f /dev/null -h '{folder}/key' -o AuthorizedKeysFile='{folder}/key.pub' -o StrictModes=no -o PidFile=none"
)
UP_S = 30.0


@dataclass
class Host:
    """One of those whose processes are apart.

    Attributes:
        first: the first of its processes, which takes all the others with it.
        served: what that has started itself.
        space: the kernel's name of its process namespace.
    """

    first: psutil.Process
    served: set[psutil.Process]
    space: str

    @property
    def running(self) -> set[psutil.Process]:
        """What runs there, but for what runs as long as the host does. Who enters is no child of the host's first."""
        there = {process for process in psutil.process_iter() if _space(process.pid) == self.space}
        return there - self.served - {self.first}

    def run(self, *command: str) -> None:
        """Run a command there as its administrator would."""
        _run("nsenter", "--target", str(self.first.pid), "--net", "--pid", "--mount", "--uts", *command)


@dataclass
class Hosts:
    """All hosts.

    Attributes:
        addresses: by which they know each other, on interface `eth0`.
        through: a command that runs its arguments on the first host.
        path: a folder with `ssh`, to stand first on PATH.
        others: all but the first, by address.
        bring_up: the host with that address again, after its end.
    """

    addresses: Sequence[str]
    through: Sequence[str]
    path: Path
    others: dict[str, Host]
    bring_up: Callable[[str], None]

    @property
    def second(self) -> Host:
        return self.others[self.addresses[1]]


@contextmanager
def several_hosts(folder: Path, count: int = 2) -> Iterator[Hosts]:
    """The hosts, with what they need in `folder`; skips the test where that is not permitted."""
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"several hosts on one machine need {', '.join(missing)}")
    mark = secrets.token_hex(3)
    addresses = [f"10.77.0.{number}" for number in range(1, count + 1)]
    names = {address: f"host{number}-{mark}" for number, address in enumerate(addresses, start=1)}
    first, others, made = names[addresses[0]], dict[str, Host](), []
    try:
        for name in names.values():
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"network namespaces are not permitted here: {done.stderr.strip()}")
            made.append(name)
        _run("ip", "-n", first, "link", "add", "eth0", "type", "bridge")
        for name in made[1:]:
            _run("ip", "link", "add", name, "netns", first, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "-n", first, "link", "set", name, "master", "eth0", "up")
        for address, name in names.items():
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", interface, "up")
        _make_key(folder)
        with ExitStack() as stack:

            def bring_up(address: str) -> None:
                init = stack.enter_context(_apart(names[address], folder))
                (folder / f"{address}.pid").write_text(str(init.pid))
                others[address] = Host(init, set(init.children()), _space(init.pid))
                assert others[address].space != _space(os.getpid())

            for address in addresses[1:]:
                bring_up(address)
            yield Hosts(addresses, _enter(first), _client(folder), others, bring_up)
    finally:
        for name in made:
            _run("ip", "netns", "delete", name)


def _space(pid: int) -> str:
    with suppress(OSError):  # it has ended
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _enter(name: str, *more: str) -> list[str]:
    own = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    return ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", *more, "sh", "-c", own, name]


def _make_key(folder: Path) -> None:
    if _sshd():
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))
        Path("/run/sshd").mkdir(exist_ok=True)


@contextmanager
def _apart(name: str, folder: Path) -> Iterator[psutil.Process]:
    server = _sshd()
    keeps = f"{server} {SERVER.format(folder=folder)} &" if server else "sleep infinity &"
    outer = [*_enter(name, "--pid", "--fork", "--kill-child", "--mount-proc"), *BARE, "sh", "-c", f"{keeps} wait"]
    with (folder / f"{name}.log").open("ab") as log:
        process = psutil.Popen(outer, stdout=log, stderr=log, start_new_session=True)
    try:
        patience = Patience(UP_S, lambda: family(process.pid))
        while not (found := process.children()) or not _serves(found[0], ssh=bool(server)):
            assert process.poll() is None, (folder / f"{name}.log").read_text()
            assert not patience.is_over(), (folder / f"{name}.log").read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        process.kill()
        process.wait()


def _serves(init: psutil.Process, *, ssh: bool) -> bool:
    """Whether what stays is there; before it come the commands that set the host up. sshd listens as well, on port 22
    (hexadecimal in the kernel's table)."""
    listening = re.search(r":0016 \S+ 0A", Path(f"/proc/{init.pid}/net/tcp").read_text())
    started = [process.info for process in psutil.process_iter(["ppid", "name"]) if process.info["ppid"] == init.pid]
    stays = [process for process in started if process["name"] in ("sleep", "sshd")]
    return bool(stays and (listening or not ssh))


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def _client(folder: Path) -> Path:
    place = folder / "bin"
    place.mkdir()
    client = place / "ssh"
    text = CLIENT.format(ssh=shutil.which("ssh"), folder=folder) if _sshd() else STAND_IN
    client.write_text(text.replace("{folder}", str(folder)).replace("{bare}", " ".join(BARE)))
    client.chmod(0o755)
    return place
