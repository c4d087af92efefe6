"""The section `cluster` of `slime.config.schema`: which devices a run has, and how its processes share them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from slime.config.choices import Device, Placement
from slime.config.declare import DEVICES, MIB, SECONDS, Bound, key


@dataclass
class ClusterConfig:
    name: str = MISSING
    """What the cluster is called in run names and recipes."""
    device: Device = Device.cpu
    """cpu: gloo and the CPU platform of SGLang; cuda: NCCL and GPUs."""
    placement: Placement = key(Placement.disaggregated, known_as="hybrid_engine vllm_mode colocate")
    """colocated: engines and trainers share devices and take turns; disaggregated: each has its own."""
    num_nodes: int = key(1, Bound(1, 4096), known_as="trainer.nnodes actor_num_nodes")
    """Hosts the run holds."""
    spares: int = key(0, Bound(0, 4096))
    """Hosts beyond `num_nodes` that the run holds idle: one that is lost is replaced by one of them."""
    wait_for_host_s: float = key(0.0, Bound(0, 10**7))
    """Seconds that the run waits for another host, or for the same one again, once one is lost and no spare is left; 0:
    the run ends at once, or goes on with `min_hosts`."""
    min_hosts: int | None = key(None, Bound(1, 4096))
    """Hosts of trainer ranks with which the run still goes on where no other comes in the place of a lost one: with
    fewer data-parallel ranks and the same batch. Empty: it ends."""
    exclude: list[str] = field(default_factory=list)
    """Hosts that the run does not use: addresses of the hostfile, or names or addresses of hosts in Ray."""
    devices_per_node: int = key(
        1, Bound(1, 256), known_as="trainer.n_gpus_per_node actor_num_gpus_per_node num_gpus cluster.gpus"
    )
    """GPUs a host (on cpu: trainer slots a host)."""
    num_trainers: int = key(1, DEVICES)
    """Trainer ranks over all hosts; the product of the parallel sizes must divide it."""
    gpu: str | None = None
    """The GPU, by its name in the table of docs/gpus.md (`h100`); empty: no seconds are estimated."""
    gpu_row: dict[str, Any] = field(default_factory=dict)
    """Numbers of a GPU without a row there, or those in which yours differs from its row (`memory_gb_s: 2000`)."""
    device_memory_mb: int | None = key(None, MIB)
    """MiB of memory of one GPU, as `nvidia-smi` shows it; empty: `slime plan` compares no phase with it."""
    host_memory_gb: float | None = key(None, Bound(1, 10**6))
    """GiB of memory of one host; empty: `slime plan` compares no phase with it."""
    socket_interface: str | None = None
    """Network interface of every process (GLOO_, TP_ and NCCL_SOCKET_IFNAME); empty: the libraries choose."""
    ib_devices: list[str] = field(default_factory=list)
    """InfiniBand or RoCE devices over which prefill engines send KV caches (`mlx5_0`, ...)."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Environment variables of every trainer and engine process; they win over those that slime sets (`slime plan`)."""
    ray_address: str | None = None
    """Address of a running Ray cluster to attach to; empty starts one for this run."""
    hostfile: str | None = None
    """File with the hosts' addresses, a line each, this one's too: for this run Ray starts on the others over ssh."""
    launcher: str | None = None
    """What brings Ray up on the run's other hosts: ssh, or the launcher of a plugin; empty: ssh if there is a hostfile,
    else nobody."""
    start_timeout_s: float = key(300.0, SECONDS)
    """Seconds Ray, an actor or an engine may take to come up before the run stops with its log."""
    hang_timeout_s: float = key(900.0, SECONDS)
    """Seconds a remote call may take before the run stops with every process's stack."""

    driver_grace_s: float = key(0.0, Bound(0, 10**5))
    """Seconds that Ray, trainers and engines stay, idle, once the driver is killed, for the same command to take over;
    0: they end with it."""

    @property
    def num_hosts(self) -> int:
        """Those that the run holds, spare ones last."""
        return self.num_nodes + self.spares

    @property
    def on_gpus(self) -> bool:
        return self.device is Device.cuda

    @property
    def colocated(self) -> bool:
        return self.placement is Placement.colocated
