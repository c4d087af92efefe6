"""Whose turn it is on devices that trainers and engines share.

    TRAIN     trainers                            (the engines hold nothing)
    PUBLISH   trainers, engines' weights          (publishing)
    GENERATE  engines' weights, engines' KV cache (the trainers are in host memory)

Only neighbours follow each other, so both sides' KV cache and training state never have to fit at once, and the
engines keep their weights from one publish to the next. On devices of their own, and where both sides fit a device
together, all of it is there all the time.

An engine that died starts again as it did first: while trainers are in host memory.
"""

from __future__ import annotations

import enum
import time

from slime.cluster.engines import KV_CACHE, WEIGHTS
from slime.cluster.group import Cluster
from slime.train.rank import TrainerRank


class Turn(enum.IntEnum):
    TRAIN = 0
    PUBLISH = 1
    GENERATE = 2


class DeviceSharing:
    """Moves trainers and engines in and out, one turn after the other; a run begins in TRAIN."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._moves = cluster.topology.takes_turns
        self._turn = Turn.TRAIN
        self._residue: dict[str, float] = {}

    def begin_again(self) -> None:
        """Give the shared devices to trainers that are about to start once more, whoever has them now. Engines have
        nothing to answer."""
        if self._moves:
            self._cluster.engines.may_start = True
            self._cluster.engines.close()
            self._cluster.engines.memory("release", KV_CACHE, WEIGHTS)
        self._turn = Turn.TRAIN

    def let_in(self) -> None:
        """Have trainers make room until all engines are up that have died since they generated; no-op if none has."""
        cluster, engines = self._cluster, self._cluster.engines
        while self._moves and self._turn is not Turn.GENERATE and not engines.are_whole:
            cluster.trainers.all(TrainerRank.offload)
            engines.may_start = True
            engines.close()
            engines.memory("release", KV_CACHE, *([WEIGHTS] if self._turn is Turn.TRAIN else []))
            cluster.trainers.all(TrainerRank.onload)

    def for_training(self) -> dict[str, float]:
        """Give the shared devices to the trainers; no-op if they have them. Returns the seconds that took as a metric,
        no metric where nothing moves."""
        return self._enter(Turn.TRAIN, "onload")

    def for_weights(self) -> dict[str, float]:
        """Keep the weights of trainers and engines on the devices, to publish. Engines that have died are up again
        then."""
        moved = self._enter(Turn.PUBLISH, "handover")
        self.let_in()
        return moved

    def for_saving(self) -> dict[str, float]:
        """Let the trainers save what they hold; moves as little as possible."""
        return self._enter(min(self._turn, Turn.PUBLISH), "handover")

    def for_generation(self) -> dict[str, float]:
        """Give the shared devices to the engines; the metrics also say what the trainers leave behind."""
        return self._enter(Turn.GENERATE, "offload") | self._residue

    def _enter(self, turn: Turn, phase: str) -> dict[str, float]:
        if not self._moves:
            return {}
        start = time.perf_counter()
        while self._turn < turn:
            self._forward()
        while self._turn > turn:
            self._back()
        return {f"seconds/{phase}": time.perf_counter() - start}

    def _forward(self) -> None:
        if self._turn is Turn.TRAIN:
            self._cluster.trainers.all(TrainerRank.trim)
            self._cluster.engines.memory("resume", WEIGHTS)
        else:
            self._residue = self._cluster.trainers.all(TrainerRank.offload)[0]  # of the first rank
            self._cluster.engines.may_start = True
            self._cluster.engines.memory("resume", KV_CACHE)
        self._turn = Turn(self._turn + 1)

    def _back(self) -> None:
        if self._turn is Turn.GENERATE:
            self._cluster.engines.close()
            self._cluster.engines.memory("release", KV_CACHE)
            self._cluster.trainers.all(TrainerRank.onload)
        else:
            self._cluster.engines.memory("release", WEIGHTS)
        self._turn = Turn(self._turn - 1)
