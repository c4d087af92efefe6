"""Ray under the run: attach to a cluster that is there, or start one that dies with this process."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from slime.config.schema import ClusterConfig, Device
from slime.errors import SlimeError

OBJECT_STORE_BYTES = 512 * 2**20  # batches of token ids; weights never pass through the object store


@contextlib.contextmanager
def ray_cluster(cluster: ClusterConfig, num_slots: int) -> Iterator[None]:
    """Connect to `cluster.ray_address`, or start Ray on this host with `num_slots` logical CPUs on cpu.

    Ray's processes are tied to this one by the kernel (parent-death signal), so none survives a `kill -9` of the
    driver. Token authentication stays on: a missing token is made for a cluster we start.

    Raises:
        SlimeError: Ray does not start, or is not there.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not cluster.ray_address:
        make_token()
    # The workers import this checkout and the environment's plugins by the paths of the driver.
    options: dict[str, object] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if cluster.ray_address:
        options["address"] = cluster.ray_address
    else:
        # Without "local" Ray would join whatever cluster $RAY_ADDRESS or the host's last `ray start` names.
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        if cluster.device is Device.cpu:
            options["num_cpus"] = num_slots
    try:
        ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = cluster.ray_address or "a new local cluster"
        todo = (
            "Check `cluster.ray_address` and the token in ~/.ray/auth_token, or leave the address empty to start Ray."
        )
        raise SlimeError(f"Ray did not come up: {error}", where=where, todo=todo) from error
    try:
        yield
    finally:
        ray.shutdown()


def make_token() -> None:
    """The token by which Ray's processes know each other, where Ray looks for it; one that is there stays.

    Ray itself would make one that everybody on the host can read.
    """
    token = Path.home() / ".ray/auth_token"
    if any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")) or token.exists():
        return
    token.parent.mkdir(mode=0o700, exist_ok=True)
    made = token.with_name(f".auth_token.{os.getpid()}")
    made.touch(mode=0o600)
    made.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):  # another run was first
        os.link(made, token)
    made.unlink()
