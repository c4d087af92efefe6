"""What a trainer rank holds on its device and host, phase by phase, from sizes alone. No torch.

Each item is a function whose docstring states its formula; bytes everywhere. `benchmarks/memory.py` measures what is
predicted here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from slime.layout import Grid
from slime.sizes.parameters import Held
from slime_tools.memory.activations import Layer

GIB = 2**30


class Phase(enum.Enum):
    """What a step does, as the plan names it."""

    start = "start"
    generate = "generate"
    logprobs = "logprobs"
    train = "train"
    update = "update"
    publish = "publish"
    save = "save"


TRAINING = (Phase.logprobs, Phase.train, Phase.update, Phase.publish, Phase.save)
"""Phases in which a trainer that takes turns with an engine is on its device."""
HANDOVER = (Phase.publish, Phase.save)
"""Phases in which the weights of both share a device, if they take turns; the trainer's gradients are gone then."""

CONTEXT = 2.5 * GIB
"""CUDA context, cuBLAS workspaces and kernels of a trainer rank: 2.4 GiB beside what torch reserved, on an H200."""
NCCL = 0.25 * GIB
"""Buffers of one communicator, NVLS off."""
GAPS = 0.1
"""What torch reserves beside the activations' peak, as a share of it: packs differ in length, blocks do not match."""
CPU_ADAM = 18
"""Bytes of host memory a locally owned parameter: master, two moments and gradient in fp32, the weight in bf16."""
DEEPEP = 0.65 * GIB
"""NVLink and RDMA buffers of DeepEP's normal kernels, at most."""
KEPT = "torch's cache"
BESIDE_TORCH = ("CUDA and NCCL", "allocator's gaps", "DeepEP buffers", KEPT)
"""Items of a device that torch does not count as allocated."""
COPIES = "copies in memory"
PROCESS = 5 * GIB
"""Host memory of a trainer or engine rank's process: interpreter, torch, CUDA's own."""


@dataclass
class Table:
    """Bytes by item and phase; items in the order in which they came."""

    rows: dict[str, dict[Phase, float]] = field(default_factory=dict)

    def add(self, item: str, num_bytes: float, phases: Iterable[Phase]) -> None:
        """More of an item in some phases; nothing of 0 bytes."""
        for phase in phases if num_bytes > 0 else ():
            row = self.rows.setdefault(item, {})
            row[phase] = row.get(phase, 0.0) + num_bytes

    def merge(self, other: Table) -> None:
        for item, row in other.rows.items():
            for phase, num_bytes in row.items():
                self.add(item, num_bytes, [phase])

    def total(self, phase: Phase) -> float:
        return sum(row.get(phase, 0.0) for row in self.rows.values())

    @property
    def phases(self) -> list[Phase]:
        return [phase for phase in Phase if self.total(phase)]

    @property
    def peak(self) -> Phase:
        return max(self.phases, key=self.total)


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter: of weights, of gradients (summed in fp32), of master weights and Adam's moments."""

    weight: int
    gradient: int
    optimizer: int


BF16 = Precision(weight=2, gradient=4, optimizer=12)
FP32 = Precision(weight=4, gradient=4, optimizer=8)
"""Weights are their own masters."""


@dataclass(frozen=True)
class TrainerRank:
    """One rank of a pipeline stage.

    Attributes:
        layers: activations of its layers.
        head: of `Activations.head` on the last stage, otherwise nothing.
        bucket: bytes of weights handed to the engines at once; at least the largest tensor.
        num_buckets: that take turns; 0 on a rank that only sends its part.
        quantizes: engines hold the weights in fewer bits.
        computes_logprobs: a pass over the batch comes before training, without gradients.
        has_reference: a second set of the weights that learn lies in host memory.
        has_teacher: a second set of all weights does.
        cpu_adam: Adam runs there too.
        colocated: an engine shares its device.
        takes_turns: it leaves the device to that one.
        saves: it writes checkpoints.
        saves_meanwhile: from a copy on the host, whose memory stays.
        num_copies: of a host's files as of a checkpoint that lie in the memory of hosts, by host.
        deepep: it exchanges the experts' tokens.
        trains_adapters: these learn and are saved, the model's own weights neither.
        critic: parameters of a second model that learns.
        critic_takes_turns: whichever of the two does not work is in host memory.
    """

    held: Held
    grid: Grid
    stage: int
    layers: tuple[Layer, ...]
    activations: float
    head: tuple[float, float] = (0.0, 0.0)
    precision: Precision = BF16
    bucket: float = 0.0
    num_buckets: int = 0
    quantizes: bool = False
    computes_logprobs: bool = False
    has_reference: bool = False
    has_teacher: bool = False
    cpu_adam: bool = False
    colocated: bool = False
    takes_turns: bool = False
    saves: bool = True
    saves_meanwhile: bool = False
    num_copies: int = 0
    deepep: bool = False
    trains_adapters: bool = False
    critic: Held | None = None
    critic_takes_turns: bool = False

    @property
    def owned(self) -> float:
        """Parameters whose optimizer state is this rank's: dense / (dp x cp) + experts / edp."""
        return self._owned(self.held)

    @property
    def owned_of_critic(self) -> float:
        return self._owned(self.critic or Held())

    def _owned(self, held: Held) -> float:
        return held.dense / (self.grid.dp * self.grid.cp) + held.experts / self.grid.edp

    @property
    def saved(self) -> float:
        """Its files of a checkpoint, which replicas of the model share out: 2 bytes a parameter (4 in fp32), and of one
        that learns 12 (8) of masters and moments, and those of the reference."""
        precision, owned = self.precision, self.owned + self.owned_of_critic
        beside = 0 if self.trains_adapters else self.held.frozen / (self.grid.dp * self.grid.cp)
        weights = owned + beside + (self.owned if self.has_reference else 0)
        return precision.weight * weights + precision.optimizer * owned

    @property
    def weights(self) -> float:
        """2 bytes a parameter held (4 in fp32), in DDP's buffers where they learn."""
        return self.precision.weight * self.held.all

    @property
    def gradients(self) -> float:
        """4 bytes a parameter held that learns: DDP sums in fp32."""
        return self.precision.gradient * self.held.learning

    @property
    def optimizer(self) -> float:
        """12 bytes a parameter owned: fp32 master and two moments; nothing where Adam runs on the CPU."""
        return 0.0 if self.cpu_adam else self.precision.optimizer * self.owned

    @property
    def of_critic(self) -> dict[str, float]:
        """Weights, gradients and optimizer state by item, as the policy's."""
        held = self.critic or Held()
        optimizer = 0.0 if self.cpu_adam else self.precision.optimizer * self.owned_of_critic
        sizes = (self.precision.weight * held.all, self.precision.gradient * held.learning, optimizer)
        return dict(zip(("critic's weights", "critic's gradients", "critic's optimizer"), sizes, strict=True))

    @property
    def critic_state(self) -> float:
        """Of the critic, what must come back as it was: all but gradients."""
        weights, _, optimizer = self.of_critic.values()
        return weights + optimizer

    @property
    def forward(self) -> float:
        """Without gradients one layer is alive at a time, or the logits of a chunk."""
        return max([*(layer.saved + layer.lasting for layer in self.layers), sum(self.head)], default=0.0)

    @property
    def communicators(self) -> float:
        """A communicator for each parallel group of several ranks."""
        sizes = (self.grid.tp, self.grid.cp, self.grid.dp, self.grid.pp, self.grid.ep, self.grid.dp * self.grid.cp)
        return NCCL * sum(size > 1 for size in sizes)

    @property
    def publishing(self) -> float:
        """Buckets that take turns, and about three buckets of tensors that are on their way or put together; one more
        waits until it is quantised, to half its bytes."""
        return self.bucket * (self.num_buckets + 3 + 1.5 * self.quantizes) if self.num_buckets else self.bucket

    @property
    def training(self) -> list[Phase]:
        """The phases that this run has of those in which a trainer works."""
        absent = {
            Phase.logprobs: not self.computes_logprobs,
            Phase.save: not self.saves,
            Phase.publish: not self.bucket,
        }
        return [phase for phase in TRAINING if not absent.get(phase)]

    @property
    def phases(self) -> list[Phase]:
        """The same, and generating, if there are engines."""
        return [Phase.generate, *self.training] if self.bucket else self.training

    def on_device(self) -> Table:
        """By phase. One that takes turns gives its gradients up before the engines' weights come, and the rest but
        its context, communicators and DeepEP's buffers before they generate. One that stays beside an engine keeps
        what torch reserved at the peak."""
        table, training, always = Table(), self.training, self.phases
        resident = training if self.takes_turns else always
        table.add("weights", self.weights, resident)
        with_gradients = [phase for phase in resident if not (self.takes_turns and phase in HANDOVER)]
        table.add("gradients", self.gradients, with_gradients)
        table.add("optimizer", self.optimizer, resident)
        for item, num_bytes in self.of_critic.items():
            needed = with_gradients if "gradients" in item else resident
            # By turns the policy's peak is the higher one: its head is the larger. A checkpoint takes both at once.
            needed = [phase for phase in needed if phase is Phase.save] if self.critic_takes_turns else needed
            table.add(item, num_bytes, needed)
        table.add("activations", self.activations, [Phase.train])
        table.add("allocator's gaps", GAPS * self.activations, [Phase.train])
        if self.computes_logprobs:
            table.add("activations", self.forward, [Phase.logprobs])
        table.add("publish buckets", self.publishing, [Phase.publish])
        table.add("DeepEP buffers", DEEPEP if self.deepep else 0, always)
        table.add("CUDA and NCCL", CONTEXT + self.communicators, always)
        if self.colocated and not self.takes_turns:
            peak = table.total(table.peak)
            for phase in always:
                table.add(KEPT, peak - table.total(phase), [phase])
        return table

    def allocated(self, phase: Phase) -> float:
        """What torch has allocated on the device at most."""
        rows = self.on_device().rows
        return sum(row.get(phase, 0.0) for item, row in rows.items() if item not in BESIDE_TORCH)

    def on_host(self, num_ranks: int) -> Table:
        """Of `num_ranks` such ranks, by phase; what is page-locked for a trainer's turn away stays."""
        table, phases = Table(), self.phases
        table.add("trainer processes", PROCESS * num_ranks, [Phase.start, *phases])
        away = self.weights + self.optimizer if self.takes_turns or self.critic_takes_turns else 0
        table.add("trainers' way out", away * num_ranks, phases)
        if self.takes_turns or self.critic_takes_turns:
            table.add("critic's way out", self.critic_state * num_ranks, phases)
        on_cpu = CPU_ADAM * (self.owned + self.owned_of_critic) * num_ranks
        table.add("Adam on the CPU", on_cpu if self.cpu_adam else 0, phases)
        if self.has_reference:  # while it is asked, the policy's weights lie beside it
            copied = self.precision.weight * self.held.learning * num_ranks
            table.add("reference", copied, phases)
            table.add("reference", copied, [Phase.logprobs])
        if self.has_teacher:  # likewise; one of the two is asked at a time
            weights = self.weights * num_ranks
            table.add("teacher", weights, phases)
            swapped = self.precision.weight * self.held.learning * num_ranks if self.has_reference else 0
            table.add("teacher", weights - swapped, [Phase.logprobs])
        saving = phases if self.saves_meanwhile else [Phase.save]
        table.add("checkpoint", self.saved * num_ranks if self.saves else 0, saving)
        if self.num_copies:  # one more is on its way to them
            table.add(COPIES, self.saved * num_ranks * (self.num_copies + 1), phases)
        return table


def in_flight(grid: Grid, stage: int) -> float:
    """Micro-batches whose activations a stage holds at once (Megatron-core's 1F1B, or interleaved).

    1F1B: pp - stage. Interleaved: 2 (pp - stage - 1) + (vpp - 1) pp + 1 model chunks, each of 1 / vpp of the layers.
    """
    if grid.vpp == 1:
        return grid.pp - stage
    return (2 * (grid.pp - stage - 1) + (grid.vpp - 1) * grid.pp + 1) / grid.vpp
