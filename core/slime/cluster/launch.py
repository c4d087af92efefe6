"""Ray under the run: attach to a cluster that is there, or start one that dies with this process."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from slime.config.schema import ClusterConfig, Device, SlimeConfig
from slime.errors import SlimeError
from slime.rollout.limits import longest_of

SMALL_CALLS_BYTES = 256 * 2**20
"""Of the object store, for everything but batches; weights never pass through it."""
TOKEN_BYTES = 45
"""Of the arrays of `slime.types.MicroBatch`."""


def object_store_bytes(cfg: SlimeConfig) -> int:
    """Size of a host's object store that holds every share of the largest batch that a step can have.

    Ray takes the memory as objects come. One that it has no room for goes over the disk.
    """
    reinforced = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    num_tokens = max(
        reinforced * longest_of(cfg.rollout, cfg.rollout.sampling) if cfg.algo.name != "sft" else 0,
        cfg.sft.batch_size * cfg.train.max_tokens_per_micro_batch if cfg.sft.num_steps else 0,
    )
    return SMALL_CALLS_BYTES + int(1.1 * TOKEN_BYTES * num_tokens)  # sequences are padded


@contextlib.contextmanager
def ray_cluster(cluster: ClusterConfig, num_slots: int, store_bytes: int = SMALL_CALLS_BYTES) -> Iterator[None]:
    """Connect to `cluster.ray_address`, or start Ray on this host with `num_slots` logical CPUs on cpu.

    A cluster that is there has the object store that it was started with; Ray's default is 30 % of the memory.

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
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": store_bytes}
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
