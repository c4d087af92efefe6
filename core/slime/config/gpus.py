"""A kind of GPU, by its vendor's data sheet: what estimates and rules compute with. The table is `gpus.toml`."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError, did_you_mean, nearest

if TYPE_CHECKING:
    from slime.config.cluster import ClusterConfig

GPU, ROW = "cluster.gpu", "cluster.gpu_row"


@dataclass(frozen=True)
class Gpu:
    """A row of the table. Rates are those of dense products with sums in fp32; links are bytes/s each way.

    Attributes:
        memory_mib: as nvidia-smi shows it.
        host_gb_s: to the memory of its host.
        capability: CUDA's compute capability.
        nvlink_gb_s: to the other GPUs of its host; 0: these are reached as the host is.
        fp8_tflops: 0: it multiplies no FP8.
        device_name: words that the driver's name of it has; empty: any.
        source: where the numbers are published.
    """

    memory_mib: float
    multiprocessors: float
    bf16_tflops: float
    memory_gb_s: float
    host_gb_s: float
    capability: float
    nvlink_gb_s: float = 0.0
    fp8_tflops: float = 0.0
    device_name: str = ""
    source: str = ""

    @property
    def link_gb_s(self) -> float:
        return self.nvlink_gb_s or self.host_gb_s

    @property
    def architecture(self) -> int:
        """The major number of the compute capability: 8 is Ampere and Ada, 9 Hopper, 10 and 12 Blackwell."""
        return int(self.capability)


FIELDS = {field.name: field for field in dataclasses.fields(Gpu)}
HOW_TO_NAME = f"Set {GPU} to a name of the table in docs/gpus.md, or describe the GPU by {ROW}."


@functools.cache
def table() -> Mapping[str, Mapping[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("gpus.toml").read_text())


def gpu_of(cluster: ClusterConfig) -> Gpu | None:
    """The row that `cluster.gpu` names, with the numbers of `cluster.gpu_row` in place of its own; None: no key is set.

    Raises:
        SlimeError: there is no such row or number, or one is missing.
    """
    name, own = cluster.gpu, cluster.gpu_row
    if not cluster.on_gpus or (name is None and not own):
        return None
    for key, value in own.items():
        if key not in FIELDS:
            raise SlimeError("is no number of a GPU", where=f"{ROW}.{key}", todo=did_you_mean(key, FIELDS))
        is_text = FIELDS[key].default == ""
        if not (isinstance(value, str) if is_text else type(value) in (int, float) and value >= 0):
            what = f"must be {'text' if is_text else 'a number of at least 0'}, got {value}"
            raise SlimeError(what, where=f"{ROW}.{key}", todo="Correct it.")
    row = {**table().get(name or "", {}), **own}
    missing = [key for key, field in FIELDS.items() if field.default is dataclasses.MISSING and not row.get(key)]
    if missing and name is not None and (not own or nearest(name, table())):
        todo = f"{did_you_mean(name, table())} A GPU without a row is described by {ROW} (docs/gpus.md)."
        raise SlimeError(f"no GPU named '{name}' is known", where=GPU, todo=todo)
    if missing:
        todo = f"Set {' '.join(f'{ROW}.{key}=...' for key in missing)} (docs/gpus.md)."
        raise SlimeError(f"lacks {', '.join(missing)}", where=ROW, todo=todo)
    return Gpu(**row)


def gpu_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    try:
        gpu_of(cluster)
    except SlimeError as problem:
        yield problem
