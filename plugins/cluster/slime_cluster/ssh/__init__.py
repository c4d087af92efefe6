"""Runs over several hosts by ssh for slime: the launcher `ssh`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.topology.launcher import Launcher


@hookimpl
def slime_launchers() -> Mapping[str, Callable[[], Launcher]]:
    return {"ssh": _ssh}


def _ssh() -> Launcher:
    from slime_cluster.ssh.launcher import SshLauncher

    return SshLauncher()
