"""The generating side of a run: its engines, sampling from them, and the time while they still start."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from slime import plugins
from slime.cluster.calls import Calls
from slime.cluster.device_sharing import DeviceSharing
from slime.cluster.engine_return import EngineReturn, Publishes, Returning
from slime.cluster.engines import STARTING, Engines
from slime.cluster.group import Cluster
from slime.cluster.ray_starter import token_file
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import SamplingConfig
from slime.contracts import BufferPolicy
from slime.data.prompts import HeldOut
from slime.data.tokenize import Tokenizer
from slime.engine_client.client import EngineClient
from slime.engine_client.engine_set import EngineSet
from slime.engines.software import Software, software
from slime.errors import SlimeError
from slime.events import Evaluation, Events, Ready, Serving, Starting
from slime.observe.spans import span
from slime.reward.engines import NOTICE_S
from slime.run_data import Data
from slime.sampling.buffer import Begun
from slime.sampling.evaluate import evaluate
from slime.sampling.guarded import FilterChain
from slime.sampling.held import beside
from slime.sampling.loop import Ahead, Collected, Rollout
from slime.sampling.pipeline import Scorer
from slime.sampling.programs import installed_kit, opened
from slime.sampling.sampler import ProgramBySet, Sampler, own_of_sets
from slime.time_limit import often
from slime.topology.placement import process_name
from slime.topology.recordings import kept_tokens, numbers_told, recordings_of
from slime.types import Group, Sample

T = TypeVar("T")


class Generation:
    """Engines that are up, with the sampler and its two clients. They hold no weights until the first publish.

    Args:
        sampling: of the samples that are trained on.
        runner: of the event loop that the sampler belongs to.
        calls: notice a process that dies meanwhile.
        sharing: whose turn it is on shared devices.
        returning: brings engines back that die.
        rollout: collects samples for steps; None: no step trains on samples. One that is ahead goes on while trainers
            work; then the sampler has a gate.
        held_out: sets to evaluate on.
    """

    def __init__(
        self,
        sampling: SamplingConfig,
        runner: asyncio.Runner,
        calls: Calls,
        sharing: DeviceSharing,
        events: Events,
        returning: Returning,
        sampler: Sampler,
        rollout: Rollout | None,
        held_out: Sequence[HeldOut],
    ) -> None:
        self._sampling, self._runner, self._calls = sampling, runner, calls
        self._sharing, self._events = sharing, events
        self._returning = returning
        self._sampler, self._rollout, self._held_out = sampler, rollout, held_out

    def publish(self, version: int) -> dict[str, float]:
        """Hand the trainers' weights to the engines; returns metrics. See `Returning.publish`. Requests inside the
        engines wait meanwhile, as `rollout.publish` says."""
        rollout, gate = self._rollout, self._sampler.gate
        if rollout is None or gate is None:
            return self._returning.publish(version)

        async def go_on() -> None:
            await gate.open(version)
            rollout.go_on(version)

        self._run(gate.close(), "pausing engines")
        values = result_of(self._runner, beside(partial(self._returning.publish, version)))
        self._run(go_on(), "resuming engines")
        return values

    def collect(self, version: int) -> Collected:
        """One step's groups, generated, rewarded and filtered under weight `version`."""
        rollout, engines = self._rollout, self._sampler.engines
        assert rollout, "a stage that trains on rollouts has prompts"
        told = partial(self._events.phase, "generate")

        async def collect() -> tuple[Collected, float]:
            return await rollout.collect(version, told), engines.idle_share()

        moved = self._sharing.for_generation()
        with span("generate"):
            collected, idle_share = self._run(collect(), "generating")
        stats = {**collected.stats, "engines/idle_share": idle_share, **moved, **self._returning.metrics()}
        return dataclasses.replace(collected, stats=stats)

    @property
    def ahead(self) -> Rollout | None:
        """What generates samples of later steps while trainers work, who are asked in another thread then; or None."""
        return self._rollout if self._sampler.gate else None

    def beside(self, work: Callable[[], T]) -> T:
        """Have trainers do `work`, and return its result. Samples that were begun ahead are generated meanwhile, and
        change at no other time."""
        if (ahead := self.ahead) is None:
            return work()
        before = ahead.num_tokens
        result = result_of(self._runner, self._returning.beside(beside(work)))
        ahead.num_overlapped += ahead.num_tokens - before
        return result

    def asking(self, work: Callable[[], T]) -> T:
        """The same for work that asks engines or servers: an engine that dies meanwhile is started again."""
        if self._sampler.gate is None:
            return self._run(beside(work), "asking for columns")
        return self.beside(work)

    def evaluate(self, version: int) -> dict[str, float]:
        """Metrics on the held-out prompts under weight `version`, which was published last."""
        self._sharing.for_generation()
        told = partial(self._events.phase, "evaluate")
        groups, stats = self._run(evaluate(self._sampler, self._held_out, version, told), "evaluating")
        self._events.publish(Evaluation(version, groups, stats))
        return stats

    def again(self, groups: Sequence[Group], version: int) -> list[Group]:
        """The attempts of these groups, made and judged once more under weight `version`, which was published last.
        Where engines draw by seeds (`enable_deterministic_inference`) they are the same to the bit."""
        made = [Group(each.prompt, [Sample(each.prompt, own.index) for own in each.samples]) for each in groups]

        async def make() -> None:
            num_samples = sum(len(group.samples) for group in made)
            pipeline = self._sampler.begin(self._sampling, version, num_samples)
            for group in made:
                pipeline.submit(group)
            try:
                while pipeline.active:
                    await pipeline.next_finished()
            finally:
                await pipeline.cancel()

        self._sharing.for_generation()
        self._run(make(), "generating")
        return made

    def forget(self) -> None:
        """Drop all that was begun, here and in engines: the run returns to a checkpoint."""

        async def forget() -> None:
            if self._calls.cancelled:
                await asyncio.wait([self._calls.cancelled])  # it changes the buffer until it ends
            if self._sampler.gate:
                await self._sampler.gate.open(self._sampler.gate.version)
            if self._rollout:
                await self._rollout.close()
            await self._sampler.engines.abort_all()
            await self._sampler.engines.flush_cache()

        self._run(forget(), "dropping what was begun")

    def _run(self, work: Coroutine[Any, Any, T], what: str) -> T:
        return result_of(self._runner, self._calls.watched(self._returning.beside(work), what))


def result_of(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, kept out of the runner's task: as a task ends, the runner compares handlers of signals, for
    which Python writes it down with its result, each token of a step's samples."""
    found: list[T] = []

    async def keep() -> None:
        found.append(await work)

    with often():
        runner.run(keep())
    return found[0]


def open_generation(
    stack: ExitStack,
    cluster: Cluster,
    returns: EngineReturn,
    sharing: DeviceSharing,
    events: Events,
    *,
    tokenizer: Tokenizer,
    data: Data,
    buffer: BufferPolicy,
    begun: Begun,
    scorer: Scorer,
    learner: Publishes,
    logs: Path,
    is_left: bool = False,
) -> Generation:
    """Connect to engines that are up; `stack` closes the connections. What another driver asked of them, that `is_left`
    them, is dropped. Raises SlimeError if an engine cannot do what the
    run needs."""
    installed, runner = plugins.load(), stack.enter_context(asyncio.Runner())
    cfg, topology = cluster.topology.config, cluster.topology
    endpoints = cluster.engines.endpoints
    serving = software(cfg.cluster.device, cfg.rollout.backend)
    clients = [
        serving.client(endpoint, cfg.rollout.request_timeout_s, log=logs / f"engine-{index}.log")
        for index, endpoint in enumerate(endpoints)
    ]

    def close(client: EngineClient) -> None:
        runner.run(client.close())

    for client in clients:
        stack.callback(close, client)
    _require_room(runner, serving, clients, cluster, sharing)
    events.publish(Serving({process_name(index, 0): client.url for index, client in enumerate(clients)}))
    roles = [group.role for group in topology.group_of_engine]
    engines = EngineSet(
        [runner.run(serving.pairs(roles, clients))] if topology.works_in_pairs else clients,
        notice_s=NOTICE_S if returns.may_return(topology) else 0.0,
    )
    returning = returns.returning(clients, engines, learner)

    def close_outside() -> None:
        for engine in engines if topology.outside else ():
            assert isinstance(engine, EngineClient)
            close(engine)

    stack.callback(close_outside)
    program = stack.enter_context(opened(cfg.rollout.program, logs / "program.log", [token_file()]))
    programs = {}
    for of, (name, options) in own_of_sets("program", cfg.data, cfg.eval).items():
        own = dataclasses.replace(cfg.rollout.program, name=name, options=options)
        log = logs / f"program-{of.replace('/', '-')}.log"
        programs[of] = stack.enter_context(opened(own, log, [token_file()]))
    kit = installed_kit()
    chat = kit.chat(tokenizer, cfg.data, cfg.rollout.max_prompt_tokens) if kit else None
    goes_ahead = bool(data.prompts and cfg.rollout.max_staleness)
    ahead: Ahead | None = installed.rollouts.only() if goes_ahead else None
    assert ahead or not goes_ahead, "a run that needs one is refused without"
    gate = ahead.gate(engines, cfg.rollout.publish, cfg.rollout.request_timeout_s) if ahead else None
    sampler = Sampler(
        cfg.rollout,
        cfg.reward,
        cfg.run.seed,
        engines,
        tokenizer,
        ProgramBySet(program, programs) if programs else program,
        scorer,
        chat,
        gate,
        (*recordings_of(cfg), *kept_tokens(cfg), *numbers_told()),
        read_hf_config(config_folder(cfg.model))["vocab_size"],
    )
    rollout = None
    if data.prompts:
        chosen = FilterChain(installed.filters, cfg.filter, cfg.cluster.hang_timeout_s)
        make = partial(ahead.rollout, num_steps=cfg.run.num_steps) if ahead else Rollout
        rollout = make(cfg.rollout, sampler, prompts=data.prompts, buffer=buffer, sample_filter=chosen, begun=begun)
        stack.callback(lambda: runner.run(rollout.close()))
    found = Generation(
        cfg.rollout.sampling, runner, cluster.calls, sharing, events, returning, sampler, rollout, data.held_out
    )
    if is_left:
        found.forget()
    return found


def _require_room(
    runner: asyncio.Runner,
    serving: Software,
    clients: Sequence[EngineClient],
    cluster: Cluster,
    sharing: DeviceSharing,
) -> None:
    """See `Software.require_room`. An engine that has died since it was up starts again first."""
    while True:
        try:
            return runner.run(serving.require_room(clients, cluster.topology.config))
        except SlimeError:
            cluster.calls.look_closely(STARTING)
            if not cluster.calls.num_beside:  # nobody has died
                raise
            sharing.let_in()
            cluster.engines.finish()
            for client, endpoint in zip(clients, cluster.engines.endpoints, strict=True):
                client.move(endpoint)


class StartingEngines:
    """Engines that start while the run does something else, until they are a `Generation`, which `connect` makes."""

    def __init__(
        self, engines: Engines, sharing: DeviceSharing, events: Events, connect: Callable[[], Generation]
    ) -> None:
        self._engines, self._sharing, self._events, self._connect = engines, sharing, events, connect
        self._generation: Generation | None = None

    @property
    def are_connected(self) -> bool:
        return self._generation is not None

    def look(self) -> None:
        """Connect to the engines if they are up by now. Raises SlimeError if one failed to start, or cannot do what the
        run needs."""
        if self._generation is None and self._engines.are_up():
            self.wait()

    def forget(self) -> None:
        """See `Generation.forget`. Engines that are still starting know of nothing."""
        if self._generation:
            self._generation.forget()

    def wait(self) -> Generation:
        """The generating side, once every engine is up; raises as `look`."""
        if self._generation is None:
            self._events.publish(Starting())
            self._sharing.let_in()
            self._engines.finish()
            self._events.publish(Ready())
            self._generation = self._connect()
        return self._generation
