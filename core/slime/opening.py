"""Opens a run: everything that it holds while it lasts, cheapest first."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from slime import plugins
from slime.algo.stages import Stages, run_stages
from slime.checkpoints import Checkpoint
from slime.cluster import preflight
from slime.cluster.copies import Copies
from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.engine_return import engine_return
from slime.cluster.group import open_cluster
from slime.cluster.ray_starter import ray_here, token_file
from slime.compose.compose import Composed
from slime.config.paths import resolve
from slime.config.schema import SlimeConfig
from slime.contracts import Stateful
from slime.data.tokenize import import_tokenizers, load_tokenizer
from slime.events import Events, Ready, Restored, Starting
from slime.generation import Generation, StartingEngines, open_generation
from slime.learner import Learner
from slime.observe import spans
from slime.observe.metrics import MetricsLog, read_rows
from slime.observe.status import StatusFile
from slime.observe.step_log import StepLog
from slime.observe.subscribers import subscribers
from slime.reward.engines import FrozenEngines, known_to_driver
from slime.reward.service import RewardService
from slime.run_config import container, shown_config
from slime.run_data import Data
from slime.run_dir import RunDir, step_of, with_resume_hint
from slime.sampling.buffer import Begun
from slime.sampling.guarded import GuardedBuffer, GuardedEstimator
from slime.sampling.sampler import ScorerBySet, own_of_sets
from slime.topology.topology import Topology
from slime.trainer_return import TrainerReturn
from slime.types import TrackedRun
from stack_dumps.dumps import register

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """An open run; `slime.run` says in which order its two sides work."""

    cfg: SlimeConfig
    topology: Topology
    stages: Stages
    folder: RunDir
    events: Events
    log: StepLog  # takes the metrics of each step
    data: Data
    learner: Learner  # the training side
    estimator: GuardedEstimator  # of advantages, with its state
    engines: StartingEngines | None  # of the generating side; None: nothing is generated
    trainers: TrainerReturn  # when some of the training side have died
    staying: AbstractContextManager[None]  # in the block, a driver that is killed leaves what it has started

    @property
    def generation(self) -> Generation:
        """The generating side; waits for engines that are still starting."""
        assert self.engines, "a run that generates has engines"
        return self.engines.wait()

    def beside(self, work: Callable[[], T]) -> T:
        """Have trainers do `work` (`Generation.beside`); where nothing is generated, too."""
        return self.generation.beside(work) if self.engines else work()

    def asking(self, work: Callable[[], T]) -> T:
        """The same for `Generation.asking`."""
        return self.generation.asking(work) if self.engines else work()


def open_run(
    composed: Composed, stack: ExitStack, *, log_metrics: bool = True, checkpoint: Checkpoint | None = None
) -> Run:
    """Open everything of a run that is ready; `stack` closes it again, in reverse. It continues from `checkpoint`, or
    from the newest one of its own directory.

    The order is: Ray on this host, while the tokenizer's library is imported; the data; the run directory; the reward
    workers; the cluster; the weights. So a mistake in the cheap parts is found before anything is written and before
    the expensive parts start. Where supervised steps come first, engines may still be starting afterwards.
    """
    cfg, topology = composed.cfg, composed.topology
    assert topology, "its config has no problems"
    installed, path = plugins.load(), (Path(cfg.run.dir) / cfg.run.name).absolute()
    tracked, events = TrackedRun(cfg.run.name, path, shown_config(container(cfg))), Events()
    events.subscribe(*subscribers(installed, tracked, events, every_session=True))
    ray = ray_here(topology, path if log_metrics else None)
    events.publish(Starting("starting Ray"))
    model, named = resolve(cfg.model.path), resolve(cfg.model.tokenizer or cfg.model.path)
    importing = threading.Thread(target=import_tokenizers, args=[named])
    importing.start()
    here = stack.enter_context(ray)
    importing.join()  # who imports transformers while another thread does may find it without its names
    events.publish(Starting("reading the data"))
    tokenizer = load_tokenizer(named)
    data = Data(cfg, tokenizer)
    folder = stack.enter_context(RunDir.open(path, cfg.run.resume))
    events.publish(Starting(f"{data}; run directory {folder.path}"))
    register(folder.logs / "driver.stack")
    read_rows(folder.metrics)  # a damaged line is found before the cluster starts
    folder.write_config(cfg)
    folder.write_plugins(installed.provenance(composed.chosen))
    if cfg.observe.trace:
        spans.record(folder.logs, "driver")
        stack.callback(spans.stop)
    if log_metrics:
        events.subscribe(StatusFile(folder))
        stack.enter_context(events.until_ended())
    models = {group.name: str(resolve(group.model)) for group in topology.frozen if group.model}
    frozen = FrozenEngines([group.name for group in topology.group_of_frozen], models)
    stack.enter_context(known_to_driver(frozen))
    rewards = None
    of_sets = {}
    if topology.generates:
        rewards = stack.enter_context(RewardService(cfg.reward, folder.logs / "reward.log", [token_file()], frozen))
        for of, (name, options) in own_of_sets("reward", cfg.data, cfg.eval).items():
            own = dataclasses.replace(cfg.reward, name=name, options=options)
            log = folder.logs / f"reward-{of.replace('/', '-')}.log"
            of_sets[of] = stack.enter_context(RewardService(own, log, [token_file()], frozen))
    if log_metrics:
        metrics = stack.enter_context(MetricsLog(folder))
        events.subscribe(metrics, first=True)
        events.subscribe(*subscribers(installed, tracked, events))
    stack.enter_context(with_resume_hint(folder, cfg.sft.num_steps))
    verb = "taking over" if here.is_left else "starting"
    events.publish(Starting(f"{verb} {_processes(topology)}"))
    require_ready = partial(preflight.require_ready, topology, folder, writes=log_metrics, is_left=here.is_left)
    cluster = stack.enter_context(open_cluster(topology, here, folder.logs, events.publish, require_ready, frozen))
    buffer = GuardedBuffer(installed.buffers, cfg.buffer.name, cfg.buffer.options, cfg.cluster.hang_timeout_s)
    estimator = GuardedEstimator(installed.estimators, cfg.algo, cfg.cluster.hang_timeout_s)
    begun, sharing, stages = Begun(), DeviceSharing(cluster), run_stages(cfg)
    returns = engine_return()
    cluster.calls.restarts = returns.begin(topology, cluster.calls, cluster.engines, events.publish)
    cluster.start()
    stack.enter_context(cluster.calls.naming_causes())
    events.publish(Starting("loading weights"))
    sources = {"prompts": data.prompts, "demonstrations": data.demonstrations}
    states: dict[str, Stateful] = {name: source for name, source in sources.items() if source is not None}
    states |= {"buffer": buffer, "begun": begun, "estimator": estimator}
    copies = Copies(cluster.calls, cfg.cluster, here.mark)
    stack.callback(copies.end)
    learner = Learner(topology, folder, cluster.trainers, sharing, states, copies, checkpoint)
    events.publish(Restored(learner.position.stage if learner.resumed else None))
    engines = None
    if rewards:
        connect = partial(
            open_generation,
            stack,
            cluster,
            returns,
            sharing,
            events,
            tokenizer=tokenizer,
            data=data,
            buffer=buffer,
            begun=begun,
            scorer=ScorerBySet(rewards, of_sets) if of_sets else rewards,
            learner=learner,
            logs=folder.logs,
            is_left=here.is_left,
        )
        engines = StartingEngines(cluster.engines, sharing, events, connect)
        beside = log_metrics and stages.reinforces and learner.position.sft_step < cfg.sft.num_steps
        engines.look() if beside else engines.wait()
    origin = f"starts from {cfg.model.weights or model}"
    if isinstance(resumed := learner.resumed, Checkpoint):
        origin = f"continues after {step_of(resumed.step, cfg.sft.num_steps)}, from {resumed.path}"
    still = "; engines are still starting" if engines and not engines.are_connected else ""
    events.publish(Ready(f"ready: {origin}{still}"))
    step_log = StepLog(events)
    trainers = TrainerReturn(topology, cluster.calls, learner, engines, events, step_log)
    stays = here.staying(cfg.cluster.driver_grace_s)
    return Run(cfg, topology, stages, folder, events, step_log, data, learner, estimator, engines, trainers, stays)


def _processes(topology: Topology) -> str:
    counts = {
        "trainer ranks": topology.cluster.num_trainers,
        "engines": len(topology.group_of_engine + topology.group_of_frozen),
    }
    return " and ".join(f"{count} {what if count > 1 else what[:-1]}" for what, count in counts.items() if count)
