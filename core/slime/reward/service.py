"""Scores samples in worker processes: a reward may raise, hang, crash or eat memory, and costs one verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from guarded_workers.process import LostWorkerError
from guarded_workers.wire import FaultError
from slime import plugins
from slime.config.schema import RewardConfig
from slime.reward.engines import Addresses, FrozenEngines
from slime.reward.judge import lean
from slime.reward.verdicts import verdict
from slime.types import Prompt, Sample, Verdict, VerdictKind
from slime.workers import WorkerPool, pool_of

_CLOSED = Verdict.error("the reward service was closed")


class RewardService:
    """`cfg.num_workers` workers, each with its own reward object; a sample occupies one of them, or a group.

    A worker that exceeds `cfg.timeout_s` or dies is replaced, with everything it started killed. Samples are served
    in the order they came; a slow one delays only those that need its worker. May be used from one event loop after
    another, but not from two at the same time.

    Args:
        cfg: which reward, and its limits.
        log: file for the output of rewards and the stacks of their exceptions; None discards it.
        hidden: files that rewards cannot read, where the machine permits to hide them.
        frozen: engines that rewards may ask. To wait for one is not to be late; one that dies costs no verdict.
    """

    def __init__(
        self,
        cfg: RewardConfig,
        log: Path | None = None,
        hidden: Sequence[Path] = (),
        frozen: FrozenEngines | None = None,
    ) -> None:
        assert cfg.num_workers > 0, "compose() refuses a service without workers"
        self._cfg, self._log, self._hidden = cfg, log, hidden
        self._frozen = frozen or FrozenEngines()
        self._pool: WorkerPool | None = None
        self._judges_groups = False

    def start(self) -> None:
        """Start the workers and wait until each has its reward. Raises SlimeError if the reward cannot be created, with
        the distribution it comes from."""
        cfg = self._cfg
        chosen = plugins.load().rewards.get(cfg.name)
        servant, first = "slime.reward.judge:Judge", cfg.num_workers
        self._pool = pool_of(chosen, cfg, "reward", servant, first=first, log=self._log, hidden=self._hidden)
        self._judges_groups = self._pool.start() is True

    def judges_groups(self, prompt: Prompt) -> bool:
        """Whether the samples of `prompt` are judged together, by `score_group`; known once it has started."""
        return self._judges_groups

    async def score(self, sample: Sample) -> Verdict:
        """The verdict on one sample; never raises."""
        [judged] = await self._asked(lean(sample), 1)
        return judged

    async def score_group(self, samples: Sequence[Sample]) -> list[Verdict]:
        """The verdicts on the samples of a prompt, in their order; never raises."""
        return await self._asked([lean(sample) for sample in samples], len(samples))

    async def _asked(self, asked: Sample | list[Sample], count: int) -> list[Verdict]:
        """`count` verdicts of a worker; asked for again where an engine that it may have asked died meanwhile."""
        while True:
            addresses, num_lost = await self._frozen.up(), self._frozen.num_lost
            judged = await self._once((asked, addresses, self._cfg.timeout_s), count)
            failed = any(verdict.kind is VerdictKind.ERROR for verdict in judged)
            if not failed or (self._pool and self._pool.is_closed) or not await self._frozen.any_lost(num_lost):
                return judged

    async def _once(self, message: tuple[Sample | list[Sample], Addresses, float], count: int) -> list[Verdict]:
        """`count` verdicts of a worker; all of them the same one without a value where it gives no answer."""
        assert self._pool, "start() comes first"
        lost: list[str] = []
        while not self._pool.is_closed and len(lost) < 2:
            try:
                async with self._pool.worker(fresh=bool(lost)) as worker:
                    judged = await worker.ask(message, partial(_verdicts, count), self._cfg.timeout_s)
                explained = [replace(each, reason=self._pool.explained(each.reason)) for each in judged]
                return [_CLOSED] * count if self._pool.is_closed else explained
            except FaultError as fault:
                said = _CLOSED if self._pool.is_closed else Verdict.error(self._pool.explained(str(fault)))
                return [said] * count
            except TimeoutError:
                return [Verdict.timeout(f"no verdict within reward.timeout_s={self._cfg.timeout_s:g} s")] * count
            except LostWorkerError as error:
                lost.append(str(error))
                if not self._pool.is_closed:
                    self._pool.note(f"a worker was lost: {error}. Its sample goes to a new one")
        if self._pool.is_closed:
            return [_CLOSED] * count
        return [Verdict.error(f"two workers of the reward were lost, the second one new: {'; '.join(lost)}")] * count

    def close(self) -> None:
        """Kill the workers and all they started, and return when they are gone. Scores in flight become errors."""
        if self._pool:
            self._pool.close()

    def __enter__(self) -> RewardService:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _verdicts(count: int, answer: Any) -> list[Verdict]:
    """The verdicts of an answer, on a sample or a group of `count`; raises one of `wire.MALFORMED`."""
    several = answer if isinstance(answer, list) else [answer]
    if len(several) != count:
        raise ValueError("a verdict for each sample")
    return [verdict(**fields) for fields in several]
