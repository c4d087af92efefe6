"""The contract of one rank of the trainer, which a distribution of its own brings. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import BinaryIO, Protocol

from slime.config.schema import Device
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.extras import install
from slime.imports import absent
from slime.train.packing import RankLayout
from slime.types import Batch
from slime.weights.portions import Weights

TRAINER = "slime_megatron.train.trainer:Trainer"
"""The class of its ranks. There is no other to choose: the keys of `train`, and families and their blocks, are written
in Megatron-core's words."""

OWN_SECONDS = "seconds/own"
"""Metric of each rank: what its passes of a step took before its gradients met those of other replicas of the model."""


@dataclass(frozen=True)
class Usage:
    """Bytes of one rank on its host: all that the driver counts on the rank's device, other processes' included, when
    this rank held most (None on cpu), and the process's resident memory."""

    host: str
    device: int | None
    process: int


class Saving(Protocol):
    """A checkpoint whose files are being written."""

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""

    def wait(self) -> dict[str, FileFacts]:
        """Until the files are there; returns the facts of those that this rank digested as it wrote them, by name.

        Raises:
            SlimeError: the disk is full or refuses the write.
        """


class TrainerRank(Weights, Protocol):
    """Made with the config, its number, the number of ranks, and where they meet (host and port, or a file and 0): it
    joins the others and builds the model. Every method is collective: all ranks call it with the same arguments."""

    def layout(self) -> RankLayout:
        """The facts that the driver packs by."""

    def init_weights(self) -> None:
        """Take the weights that a run starts from."""

    def snapshot_reference(self) -> None:
        """The current weights become the reference, where a stage asks for one."""

    def hold_teacher(self) -> None:
        """Load the weights of `algo.teacher.path` beside the model's."""

    def begin_critic(self, stage: str) -> None:
        """Make the critic of a stage; nothing if it has none."""

    def penalties(self, batches: Sequence[Batch], stage: str) -> dict[int, float]:
        """Amounts that a stage's objective takes from rewards (`slime.algo.stages.PenalisesRewards`), before `train` is
        called with the same samples: by number of a sample, the sum over loss tokens. The sums of all ranks add up."""

    def train(self, batches: Sequence[Batch], step: int, stage: str, *, learns: bool = True) -> dict[str, float]:
        """One step of a stage, an optimizer step a batch; returns its metrics, the same on every rank but for
        `OWN_SECONDS`. Unless it `learns`, the objective's metrics are measured, and nothing changes."""

    def usage(self) -> Usage:
        """The most that this rank's device and process held since it was asked last."""

    def trim(self) -> None:
        """Return device memory that nobody needs before the next step."""

    def offload(self) -> dict[str, float]:
        """Free the device for engines that share it; returns what stays there, `residue/..._gib`."""

    def onload(self) -> None:
        """Take the device back."""

    def begin_save(self, path: Path) -> Saving:
        """Write everything into the existing folder `path` while the training goes on, from a copy on the host. Another
        may begin before that is written, in a folder whose parent is another one."""

    def load(self, path: Path, elsewhere: Callable[[str], BinaryIO] | None = None) -> None:
        """Take up what was saved, also in another parallel layout.

        Args:
            elsewhere: opens a shard that is not in the folder, by its name; None: all are there.
        """

    def export_hf(self, source: Path, destination: Path) -> None:
        """Write the current weights as an HF folder, with tokenizer and other files of the folder `source`."""


def trainer_class(device: Device) -> Callable[..., TrainerRank]:
    """The class of the trainer's ranks.

    Raises:
        SlimeError: no distribution that brings it is installed on this host, or several are.
    """
    if not find_spec(TRAINER.partition(".")[0]):
        raise SlimeError("trainers need slime-megatron, which is not installed here", todo=install(device.value))
    with absent("wandb"):  # Megatron-core's inference takes it, half a second of each rank; trackers are the driver's
        trainer: Callable[..., TrainerRank] = resolve_name(TRAINER)
    return trainer
