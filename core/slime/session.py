"""Everything a run holds while it lasts, and the verbs that `slime.run` puts in order."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slime import plugins
from slime.checkpoints import Checkpoint, CheckpointStore, require_as_written
from slime.cluster import preflight
from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.group import Cluster, open_cluster
from slime.cluster.launch import ray_here
from slime.config.paths import resolve
from slime.config.schema import SlimeConfig
from slime.contracts import BufferPolicy
from slime.data.demonstrations import DemonstrationSource
from slime.data.tokenize import Tokenizer, import_tokenizers, load_tokenizer
from slime.observe import hang
from slime.observe.metrics import SAVING, TOKENS_PER_S, MetricsLog, read_rows
from slime.observe.progress import Progress
from slime.observe.samples import SampleLog
from slime.observe.startup import Startup
from slime.observe.stopwatch import Stopwatch
from slime.observe.trackers import Trackers, shown_config
from slime.plan.peaks import planned_peaks
from slime.reward.service import RewardService
from slime.rollout.client import EngineClient
from slime.rollout.evaluate import evaluate
from slime.rollout.generate import Engine
from slime.rollout.limits import require_room
from slime.rollout.loop import Collected, Rollout, most_in_flight
from slime.rollout.pairs import Pairs
from slime.run_data import Data
from slime.run_dir import RunDir, container, saying_how_to_go_on
from slime.topology.engines import engine_groups, generates, works_in_pairs
from slime.train.packing import pack_for
from slime.types import Batch, Prompt, TrackedRun, TrainSample


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
        return ("rl", self.rl_step) if self.rl_step else ("sft", self.sft_step)


class Session:
    """The open run. Methods are the verbs of the loop; `slime.run` says in which order they happen."""

    def __init__(
        self, cfg: SlimeConfig, run: RunDir, cluster: Cluster, data: Data, tokenizer: Tokenizer, buffer: BufferPolicy
    ) -> None:
        self.cfg, self.run, self.cluster = cfg, run, cluster
        self.tokenizer, self._data, self._buffer = tokenizer, data, buffer
        self.position = Position()
        self._store = CheckpointStore(run.checkpoints, cfg.train.checkpoint.keep)
        self._metrics: MetricsLog | None = None
        self._saved: dict[str, float] = {}
        self._version = 0
        self._samples = SampleLog(run.samples, cfg.observe.samples_mb)
        self._runner: asyncio.Runner
        self._rewards: RewardService
        self._engines: list[Engine] = []
        self._startup: Startup
        self._connect_once: Callable[[], None] | None = None
        self._rollout: Rollout
        self._sharing = DeviceSharing(cluster)
        self._planned = planned_peaks(cfg, plugins.load())

    @classmethod
    def open(cls, cfg: SlimeConfig, stack: ExitStack, *, log_metrics: bool = True) -> Session:
        """Open everything; `stack` closes it again, in reverse.

        Ray on this host, while the tokenizer's library is imported; then the data, the run directory, the reward
        workers, the cluster and at last the weights: a mistake in the cheap parts is found before anything is written
        and before the expensive parts start. Where supervised steps come first, which need no engine, engines may still
        be starting at the end of this.
        """
        startup = Startup()
        startup.say("starting Ray")
        model, named = resolve(cfg.model.path), resolve(cfg.model.tokenizer or cfg.model.path)
        importing = threading.Thread(target=import_tokenizers, args=[named])
        importing.start()
        here = stack.enter_context(ray_here(cfg))
        importing.join()  # who imports transformers while another thread does may find it without its names
        startup.say("reading the data")
        tokenizer = load_tokenizer(named)
        data, installed = Data(cfg, tokenizer), plugins.load()
        run = stack.enter_context(RunDir.open(Path(cfg.run.dir) / cfg.run.name, cfg.run.resume))
        startup.say(f"{data}; run directory {run.path}")
        hang.register(run.logs / "driver.stack")
        read_rows(run.metrics)  # a damaged line is found before the cluster starts
        run.write_config(cfg)
        run.write_plugins(installed.provenance(_used(cfg)))
        rewards = RewardService(cfg.reward, run.logs / "reward.log") if generates(cfg) else None
        if rewards:
            stack.enter_context(rewards)
        trackers = stack.enter_context(_trackers(cfg, installed, run)) if log_metrics else None
        stack.enter_context(saying_how_to_go_on(run))
        startup.say(f"starting {_processes(cfg)}")
        require_ready = partial(preflight.require_ready, cfg, run, writes=log_metrics)
        cluster = stack.enter_context(open_cluster(cfg, here, run.logs, startup, require_ready))
        buffer = installed.buffers.create(cfg.buffer.name, **cfg.buffer.options)
        session = cls(cfg, run, cluster, data, tokenizer, buffer)
        cluster.start(model)
        stack.enter_context(cluster.calls.naming_causes())
        startup.say("loading weights")
        checkpoint = session._restore()
        if trackers:
            resumed = session.position.stage if checkpoint else None
            session._metrics = stack.enter_context(MetricsLog(run, trackers, resumed))
        if rewards:
            session._startup = startup
            session._connect_once = partial(session._connect, stack, rewards, installed)
        beside = log_metrics and cfg.algo.name != "sft" and session.position.sft_step < cfg.sft.num_steps
        session._reach_engines(wait=not beside)
        origin = f"continues from {checkpoint.path}" if checkpoint else f"starts from {cfg.model.weights or model}"
        startup.ready(f"ready: {origin}{'' if session._connect_once is None else '; engines are still starting'}")
        return session

    def _reach_engines(self, *, wait: bool) -> None:
        """Connect to the engines once they are up. A run whose engines cannot do what it needs ends here."""
        if self._connect_once and (wait or self.cluster.engines.are_up()):
            with self._startup.again():
                self.cluster.engines.finish()
            self._connect_once()
            self._connect_once = None

    def _connect(self, stack: ExitStack, rewards: RewardService, installed: plugins.Plugins) -> None:
        """Clients of the engines, and the sampling loop over them, in one event loop."""
        cfg = self.cfg
        self._runner, self._rewards = stack.enter_context(asyncio.Runner()), rewards
        clients = [
            EngineClient(endpoint, cfg.rollout.request_timeout_s, log=self.run.logs / f"engine-{index}.log")
            for index, endpoint in enumerate(self.cluster.engines.endpoints)
        ]
        for client in clients:
            self._close_later(stack, client)
        self._runner.run(require_room(clients, cfg))
        self._engines = [self._runner.run(Pairs.of(cfg, clients))] if works_in_pairs(cfg) else [*clients]
        if self._data.prompts:
            self._rollout = Rollout(
                cfg.rollout,
                cfg.reward,
                cfg.run.seed,
                tokenizer=self.tokenizer,
                prompts=self._data.prompts,
                buffer=self._buffer,
                sample_filter=installed.filters.create(cfg.filter.name, **cfg.filter.options),
                scorer=rewards,
                engines=self._engines,
            )

    def _close_later(self, stack: ExitStack, client: EngineClient) -> None:
        stack.callback(lambda: self._runner.run(client.close()))

    @property
    def demonstrations(self) -> DemonstrationSource:
        assert self._data.demonstrations, "opened with demonstrations"
        return self._data.demonstrations

    @property
    def held_out(self) -> Sequence[Prompt]:
        return self._data.held_out

    def prepare_reinforcement(self) -> None:
        """What reinforcement learning starts from becomes the reference that the KL divergence is taken to."""
        if self.position.rl_step == 0 and self.cfg.algo.kl_coef is not None:
            self.cluster.trainers.snapshot_reference()

    def pack(self, samples: Sequence[TrainSample], num_steps: int = 1) -> list[Batch]:
        """Micro-batches of every rank, for `num_steps` optimizer steps."""
        return pack_for(self.cfg, self.cluster.trainers.layouts[0], samples, num_steps)

    def collect(self, version: int, bar: Progress) -> Collected:
        """One step's groups, generated, rewarded and filtered under weight `version`."""
        moved = self._sharing.for_generation()
        collecting = self._rollout.collect(version, lambda kept, needed: bar.status("generate", kept, needed))
        collected = self._runner.run(self.cluster.calls.watched(collecting, "generating"))
        self._samples.step(version + 1, collected.judged)
        return dataclasses.replace(collected, stats=collected.stats | moved)

    def train_sft(self, batch: Batch, step: int) -> dict[str, float]:
        """One supervised step; metrics `train/...`, and `seconds/...` and `memory/...` as the ranks measured them. The
        first step of a session has the memory that was planned beside it."""
        self._reach_engines(wait=False)
        moved = self._sharing.for_training()
        return moved | self._as_metrics(self.cluster.trainers.train_sft(batch, step))

    def train_rl(self, batches: Sequence[Batch], step: int) -> dict[str, float]:
        """One reinforcement-learning step, an optimizer step a batch; metrics as of `train_sft`."""
        moved = self._sharing.for_training()
        return moved | self._as_metrics(self.cluster.trainers.train_rl(batches, step))

    def _as_metrics(self, values: Mapping[str, float]) -> dict[str, float]:
        named = {
            name if name.startswith(("seconds/", "memory/", "gap/")) else f"train/{name}": value
            for name, value in values.items()
        }
        planned, self._planned = self._planned, {}
        return named | planned

    def publish(self, version: int) -> dict[str, float]:
        """Hand the trainer's weights to every engine; returns metrics. The receipt is complete or it raises."""
        self._reach_engines(wait=True)
        self._sharing.for_weights()
        self._version = version
        receipt = self.cluster.trainers.publish(self.cluster.engines.endpoints, version)
        seconds = {f"publish/seconds_{phase}": value for phase, value in receipt.seconds.items()}
        sizes = {"publish/num_bytes": receipt.num_bytes, "publish/num_bytes_sent": receipt.num_bytes_sent}
        return {**{name: float(size) for name, size in sizes.items()}, **seconds}

    def offload_trainers(self) -> dict[str, float]:
        """Leave shared devices to the engines; returns how long that took and what stays, as metrics."""
        return self._sharing.for_generation()

    def evaluate(self, bar: Progress) -> dict[str, float]:
        """Metrics on the held-out prompts under the published weights."""
        self._sharing.for_generation()
        cfg = self.cfg
        evaluating = evaluate(
            cfg.eval,
            cfg.reward,
            cfg.run.seed,
            self._version,
            prompts=self.held_out,
            tokenizer=self.tokenizer,
            scorer=self._rewards,
            engines=self._engines,
            max_in_flight=most_in_flight(cfg.rollout, self._engines),
            patience_s=cfg.rollout.request_timeout_s,
            progress=lambda done, total: bar.status("evaluate", done, total),
        )
        found = self._runner.run(self.cluster.calls.watched(evaluating, "evaluating"))
        self._samples.evaluation(self._version, found.groups)
        bar.values(found.stats)
        return found.stats

    def log(
        self, stage: str, step: int, values: Mapping[str, float], watch: Stopwatch, num_tokens: float
    ) -> dict[str, float]:
        """Write one step's row, with where its time went; returns the row."""
        seconds = watch.seconds()
        row = {**values, **self._saved, **seconds, TOKENS_PER_S: num_tokens / seconds["seconds/step"]}
        self._saved = {}
        self.log_values(stage, step, row)
        return row

    def log_values(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        assert self._metrics, "opened for training"
        self.run.require_intact()
        self._metrics.log(stage, step, values, self._samples.newest())

    def checkpoint(self) -> None:
        """Save everything a resumed run needs. The step's metrics are on disk by then, so none is lost to a kill."""
        watch = Stopwatch()
        self.run.require_intact()
        with watch("checkpoint"), self._store.saving(self.position.total, self._driver_state()) as staging:
            self._sharing.for_saving()
            staging.written |= self.cluster.trainers.save(staging.path)
        self._saved = {SAVING: watch.seconds()[SAVING]}

    def _driver_state(self) -> dict[str, Any]:
        sources = {"prompts": self._data.prompts, "demonstrations": self._data.demonstrations, "buffer": self._buffer}
        return {"position": dataclasses.asdict(self.position)} | {
            name: source.state_dict() for name, source in sources.items() if source is not None
        }

    def _restore(self) -> Checkpoint | None:
        """Continue from the newest good checkpoint, or start from the model's first weights."""
        checkpoint = self._store.latest(self.cluster.trainers.examine)
        if checkpoint is None:
            if self.cfg.model.weights is not None:
                require_as_written(resolve(self.cfg.model.weights), self.cluster.trainers.examine)
            self.cluster.trainers.init_weights()
            return None
        self.cluster.trainers.load(checkpoint.path)
        state = checkpoint.driver_state()
        self.position = Position(**state["position"])
        self._buffer.load_state_dict(state["buffer"])
        for name, source in (("prompts", self._data.prompts), ("demonstrations", self._data.demonstrations)):
            if source is not None and name in state:
                source.load_state_dict(state[name])
        return checkpoint

    def export(self) -> None:
        """Write the model as an HF folder into the run directory."""
        self.run.require_intact()
        if self.cfg.train.checkpoint.export_hf:
            self._sharing.for_saving()
            self.cluster.trainers.export_hf(resolve(self.cfg.model.path), self.run.export)


def _processes(cfg: SlimeConfig) -> str:
    engines = sum(group.num_engines for group in engine_groups(cfg))
    counts = {"trainer ranks": cfg.cluster.num_trainers, "engines": engines}
    return " and ".join(f"{count} {what if count > 1 else what[:-1]}" for what, count in counts.items() if count)


def _trackers(cfg: SlimeConfig, installed: plugins.Plugins, run: RunDir) -> Trackers:
    chosen = {name: installed.trackers.create(name, **options) for name, options in cfg.observe.trackers.items()}
    return Trackers(chosen).start(TrackedRun(cfg.run.name, run.path, shown_config(container(cfg))))


def _used(cfg: SlimeConfig) -> dict[str, str]:
    return {"model": cfg.model.family, "reward": cfg.reward.name, "filter": cfg.filter.name, "buffer": cfg.buffer.name}
