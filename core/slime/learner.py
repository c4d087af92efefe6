"""The training side of a run: its trainer ranks, and the checkpoints that the run continues from."""

from __future__ import annotations

import copy
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slime import plugins
from slime.algo.stages import Stage
from slime.checkpoints import Checkpoint, CheckpointStore, Staging, require_as_written
from slime.cluster.copies import Copies, Copy
from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.trainers import TrainerGroup
from slime.config.paths import resolve
from slime.contracts import Stateful
from slime.errors import Death, Hang, SlimeError
from slime.net import Endpoint
from slime.objective import Source
from slime.observe.metrics import COPYING, SAVING
from slime.observe.stopwatch import Stopwatch
from slime.run_dir import RunDir
from slime.sizes.estimate import planned_peaks
from slime.topology.topology import Topology
from slime.train.packing import pack_for
from slime.train.rank import TrainerRank
from slime.types import RL, SFT, Batch, TrainSample
from slime.weights.teacher import TeacherFiles

Beside = Callable[[Callable[[], dict[str, float]]], dict[str, float]]
log = logging.getLogger(__name__)


@dataclass
class Position:
    """How far the run has come: supervised steps, then reinforcement-learning steps."""

    sft_step: int = 0
    rl_step: int = 0

    @property
    def total(self) -> int:
        """Number of the checkpoint taken here."""
        return self.sft_step + self.rl_step

    @property
    def stage(self) -> tuple[str, int]:
        """Place in metrics.jsonl."""
        return (RL, self.rl_step) if self.rl_step else (SFT, self.sft_step)

    def of(self, stage: str) -> int:
        """Steps of the stage of that name that are done."""
        return {SFT: self.sft_step, RL: self.rl_step}[stage]


class Learner:
    """Trains, publishes and saves; made with the weights that the run starts or continues from.

    Args:
        trainers: the started ranks.
        sharing: whose turn it is on shared devices.
        states: parts of the driver that checkpoints keep, by name.
        copies: in the memory of hosts.
        start: a good checkpoint to continue from in the place of the newest one of `folder`.

    Attributes:
        resumed: the newest good checkpoint or copy, whose state everything has now; None: a run from its beginning.
        position: how far the run has come; the loop counts on.
        is_publishing: weights are on their way to engines, or were when a trainer died.

    Raises:
        SlimeError: the checkpoint, or the weights that the run starts from, cannot be read.
    """

    def __init__(
        self,
        topology: Topology,
        folder: RunDir,
        trainers: TrainerGroup,
        sharing: DeviceSharing,
        states: Mapping[str, Stateful],
        copies: Copies,
        start: Checkpoint | None = None,
    ) -> None:
        cfg = topology.config
        self._cfg, self._folder, self._trainers, self._sharing, self._states = cfg, folder, trainers, sharing, states
        self._store, self._copies = CheckpointStore(folder.checkpoints, cfg.train.checkpoint.keep), copies
        self._plan = planned_peaks(topology, plugins.load())
        self.is_publishing = False
        self._at_rest = threading.RLock()
        self._published: int | None = None
        self._saving: tuple[Staging, ExitStack] | None = None  # files are being written; the stack publishes them
        self._teacher: TeacherFiles | None = None
        if cfg.algo.teacher.path is not None:
            self._teacher = TeacherFiles(cfg.algo.teacher.path)
            self._states = {**states, "teacher": self._teacher}
        self._beginning = copy.deepcopy({name: state.state_dict() for name, state in self._states.items()})
        self._take_up(start or self._store.latest(trainers.examine))

    def _take_up(self, saved: Checkpoint | Copy | None) -> None:
        self._planned, self.resumed = self._plan, saved
        self.position = self._continue(saved) if saved else self._begin()

    def restore(self) -> None:
        """Return to the newest copy or good checkpoint, or else to what the run began with, as a resumed run does."""
        for name, state in self._states.items():
            state.load_state_dict(copy.deepcopy(self._beginning[name]))
        self._take_up(self._newest_copy() or self._store.latest(self._trainers.examine))

    @property
    def newest(self) -> int | None:
        """Number of the step that `restore` would return to; None: to the beginning."""
        newest = self._newest_copy() or next(reversed(self._store.all()), None)
        return newest.step if newest else None

    def _newest_copy(self) -> Copy | None:
        """None where a checkpoint is newer."""
        newest, saved = self._copies.newest(), self._store.all()
        return newest if newest and (not saved or newest.step >= saved[-1].step) else None

    def end(self, lost: SlimeError) -> None:
        """Kill all ranks. What they were saving is given up for `lost`."""
        self._trainers.end()
        with self._at_rest:  # the calls of whoever still waits for old ranks have failed
            self._published, self.is_publishing = None, False
            if self._saving:
                (_, folder), self._saving = self._saving, None
                folder.__exit__(type(lost), lost, lost.__traceback__)

    def begin_again(self) -> None:
        """Start all ranks, which were ended, without weights. Engines that share their devices make room first."""
        self._sharing.begin_again()
        self._trainers.begin_again()

    def _begin(self) -> Position:
        self._copies.forget(None)
        if self._cfg.model.weights is not None:
            require_as_written(resolve(self._cfg.model.weights), self._trainers.examine)
        self._trainers.all(TrainerRank.init_weights)
        return Position()

    def _continue(self, saved: Checkpoint | Copy) -> Position:
        if isinstance(saved, Copy):
            self._copies.load(saved)
        else:
            self._copies.forget(None)
            self._trainers.all(TrainerRank.load, saved.path)
        found = saved.driver_state()
        for name, state in self._states.items():
            if name in found:
                state.load_state_dict(found[name])
        return Position(**found["position"])

    def prepare(self, stage: Stage) -> None:
        """Make the stage's first weights its reference model and its critic's first weights, and hold its teacher, if
        it has them. Raises SlimeError if the teacher's files are damaged, or not those that the resumed checkpoint was
        taken with."""
        begins = self.position.of(stage.name) == 0
        if begins and stage.needs(Source.reference):
            self._trainers.all(TrainerRank.snapshot_reference)
        if begins and stage.estimator is not None:
            self._trainers.all(TrainerRank.begin_critic, stage.name)
        if self._teacher and stage.needs(Source.teacher):
            self._teacher.examine(self._trainers.examine)
            self._trainers.all(TrainerRank.hold_teacher)

    def pack(self, samples: Sequence[TrainSample], num_steps: int = 1, *, whole_attempts: bool = False) -> list[Batch]:
        """Micro-batches of every rank, for `num_steps` optimizer steps; with `whole_attempts` all sequences of an
        attempt are in one micro-batch."""
        return pack_for(self._cfg, self._trainers.layouts[0], samples, num_steps, whole_attempts=whole_attempts)

    def train(
        self, batches: Sequence[Batch], step: int, stage: Stage, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Train one step of a stage, an optimizer step a batch; metrics `train/...`, and `seconds/...`, `memory/...`
        `gap/...` and `trainers/...` of the ranks. The first step also has the memory that was planned. `meanwhile` is
        called once trainers have begun."""
        moved = self._sharing.for_training()
        with self._at_rest:
            self._published = None
            values = self._trainers.train(batches, step, stage.name, meanwhile=meanwhile)
        as_they_are = ("seconds/", "memory/", "gap/", "trainers/")
        named = {name if name.startswith(as_they_are) else f"train/{name}": value for name, value in values.items()}
        planned, self._planned = self._planned, {}
        return moved | named | planned

    def penalties(self, batches: Sequence[Batch], stage: Stage) -> tuple[dict[int, float], dict[str, float]]:
        """Amounts to take from the reward of each sample before `train` (`Stage.penalises_attempts`), by its number
        among those that were packed; and metrics."""
        moved = self._sharing.for_training()
        with self._at_rest:
            return self._trainers.penalties(batches, stage.name), moved

    def measure(self, batches: Sequence[Batch], step: int, stage: Stage) -> dict[str, float]:
        """The objective's metrics, `eval/...`, on samples from which nothing is learnt."""
        moved, metrics = self._sharing.for_training(), stage.objective.metrics(())
        names = {*metrics.means, *metrics.token_sums, *metrics.maxima}
        with self._at_rest:
            values = self._trainers.train(batches, step, stage.name, learns=False)
        return moved | {f"eval/{name}": value for name, value in values.items() if name in names}

    def make_room(self) -> None:
        """Before `publish`: have engines that share devices with trainers hold their weights' memory, those too that
        have died since they generated."""
        self._sharing.for_weights()

    def publish(self, engines: Sequence[Endpoint | None], version: int) -> dict[str, float]:
        """Hand the weights to every engine (None: to one that is not up); returns metrics, or raises."""
        self._sharing.for_weights()
        with self._at_rest:
            self.is_publishing = True
            receipt = self._trainers.publish(engines, version)
            self._published, self.is_publishing = version, False
        sizes = {"num_bytes": float(receipt.num_bytes), "num_bytes_sent": float(receipt.num_bytes_sent)}
        values = sizes | {f"seconds_{phase}": value for phase, value in receipt.seconds.items()}
        return {f"publish/{name}": value for name, value in values.items()}

    def publish_again(self, engines: Sequence[Endpoint | None]) -> bool:
        """Hand what was published last to these engines, in whichever thread. False: the trainers have other weights
        by now. Shared devices are the engines' before and after."""
        with self._at_rest:
            if self._published is None:
                return False
            self._sharing.for_weights()
            try:
                self._trainers.publish(engines, self._published)
            except (Death, Hang):
                raise
            except SlimeError:  # of an engine that may have died, and starts again
                self._sharing.for_generation()
                raise
            self._sharing.for_generation()
            return True

    def offload(self) -> dict[str, float]:
        """Leave shared devices to the engines; returns how long that took and what stays, as metrics."""
        return self._sharing.for_generation()

    def checkpoint(self, beside: Beside = lambda work: work()) -> dict[str, float]:
        """Save everything a resumed run needs; returns how long that took, as a metric. With
        `train.checkpoint.async_save` the files are written while the run goes on: see `settle`. `beside` does the
        saving, while the driver's state may change already."""
        self._folder.require_intact()
        states = self._driver_states()
        return beside(lambda: self._save(states))

    def copy(self, beside: Beside = lambda work: work()) -> dict[str, float]:
        """Begin a copy in host memory, if one is due; returns how long that took, as a metric, or nothing where none
        has begun. `beside` as above."""
        every = self._cfg.train.checkpoint.in_memory_every
        if not every or self.position.total % every:
            return {}
        states = self._driver_states()
        return beside(lambda: self._copy(states))

    def _copy(self, states: Mapping[str, Any]) -> dict[str, float]:
        watch = Stopwatch()
        with watch("copy"), self._at_rest:
            if not self._copies.may_begin(self.position.total):
                return {}
            self._sharing.for_saving()
            self._copies.begin(self.position.total, states)
        return {COPYING: watch.seconds()[COPYING]}

    def _driver_states(self) -> dict[str, Any]:
        states = {name: state.state_dict() for name, state in self._states.items()}
        return {"position": dataclasses.asdict(self.position), **states}

    def _save(self, states: Mapping[str, Any]) -> dict[str, float]:
        waited, watch = self.settle(), Stopwatch()
        with watch("checkpoint"), self._at_rest, ExitStack() as stack:
            staging = stack.enter_context(self._store.saving(self.position.total, states))
            self._sharing.for_saving()
            self._trainers.begin_save(staging.path)
            self._folder.record_config(staging.path)
            self._saving = staging, stack.pop_all()
        if not self._cfg.train.checkpoint.async_save:
            watch.add_all(self.settle())
        return {SAVING: watch.seconds()[SAVING] + waited.get(SAVING, 0.0)}

    def settle(self, *, if_written: bool = False) -> dict[str, float]:
        """Publish the checkpoint whose files are being written, once they are (`if_written`: only if they are now);
        returns how long the run waited for them, as a metric. Raises SlimeError if the disk is full; earlier
        checkpoints are untouched."""
        if self._saving is None or (if_written and not self._trainers.has_saved()):
            return {}
        watch = Stopwatch()
        (staging, folder), self._saving = self._saving, None
        with watch("checkpoint"), folder:
            staging.written |= self._trainers.end_save()
        return {SAVING: watch.seconds()[SAVING]}

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Settle after the block, whose error, if it has one, is the one to tell."""
        try:
            yield
        except BaseException:
            try:
                self.settle()
            except SlimeError as problem:
                log.warning("the newest checkpoint was not finished: %s", problem)
            raise
        self.settle()

    def export(self) -> None:
        """Write the model as an HF folder into the run directory."""
        self._folder.require_intact()
        if self._cfg.train.checkpoint.export_hf:
            self._sharing.for_saving()
            source = resolve(self._cfg.model.path)
            self._trainers.all(TrainerRank.export_hf, source, self._folder.export)
            if left := left_out(source, self._folder.export):
                log.warning("the export leaves out %s of %s", ", ".join(left), source)


def left_out(source: Path, export: Path) -> list[str]:
    """Files of the model's folder that its export has not, but for the weights and hidden files."""
    of_weights = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
    names = {entry.name for entry in source.iterdir() if not entry.name.startswith((".", "__"))}
    there = {entry.name for entry in export.iterdir()} if export.is_dir() else names  # a host of another disk wrote it
    return sorted(name for name in names - there if not name.endswith(of_weights))
