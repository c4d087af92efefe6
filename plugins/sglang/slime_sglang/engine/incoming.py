"""A version on its way into an engine's model, on one rank.

Version 1 is loaded by SGLang's `load_weights` while its in-place writes are recorded. Later versions replay the
recorded copies, bucket by bucket, as long as they bring the same tensors (`slime_sglang.engine.load_plan`). Both are
verified in the same way: digests are of what came, and parameters are compared with it after loading.

Where engines have adapters, every version brings them, and the weights come once.
"""

from __future__ import annotations

import enum
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from slime.observe.stopwatch import Stopwatch
from slime_sglang.engine import derived
from slime_sglang.engine.adapters import IncomingAdapters, takes_adapters
from slime_sglang.engine.load_plan import LoadPlan, LoadPlans, ReceivedBucket
from slime_sglang.engine.version_check import VersionCheck, VersionFault, tensor_in_traceback
from slime_sglang.engine.writes import observed_writes
from weight_buckets.adapters import of_adapter
from weight_buckets.receipt import BucketNote, tensor_digest

logger = logging.getLogger(__name__)
_writers: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, list[str]]] = weakref.WeakKeyDictionary()
"""Of the last complete version: which tensors wrote each parameter."""
_plans: weakref.WeakKeyDictionary[torch.nn.Module, LoadPlans] = weakref.WeakKeyDictionary()
"""Of the last complete version that was learnt."""
_whole: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
"""The models whose weights are all of one version."""


class Mode(enum.Enum):
    """How a version gets into the parameters."""

    learn = enum.auto()
    """By SGLang's loader; what it does to parameters is kept for later versions."""
    replay = enum.auto()
    """As the version that was learnt; a bucket that holds something else goes through the loader."""
    load = enum.auto()
    """By SGLang's loader, as every version of this model."""


class IncomingVersion:
    """From the first bucket of a version to its last.

    Args:
        parameters: what the version must write.
        may_replay: every version writes each tensor where the one before did.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        version: int,
        parameters: Iterable[tuple[str, torch.Tensor]],
        *,
        may_replay: bool,
    ) -> None:
        self._model, self._may_replay = model, may_replay
        self.check = VersionCheck(version, parameters, _writers.get(model))
        self._plans: list[LoadPlan] = []
        self._num_replayed = 0
        self._adapters = IncomingAdapters()

    def take(self, note: BucketNote, bucket: ReceivedBucket, load: Callable[[], Any]) -> None:
        """Read a bucket, bring it into the parameters, and book that.

        Args:
            load: SGLang's own way, for a bucket that cannot be replayed.

        Raises:
            VersionFault: it is not this bucket's turn, or a tensor does not fit.
        """
        watch = Stopwatch()
        with watch("digest"):
            self.check.receive(note, bucket.tensors)
        if any(of_adapter(name) for name, _ in bucket.contents):
            self._adapters.take(bucket.tensors)
            return
        if not self._plans:
            _whole.discard(self._model)
            self._mode = self._choose(bucket)
            self._before = self._kept_beside() if self._mode is Mode.learn else {}
        plan = _plans[self._model].find(note.index, bucket.contents) if self._mode is Mode.replay else None
        with watch("load"):
            if plan:
                sources = plan.sources(bucket.memory)
                plan.replay(sources)
                self._num_replayed += 1
            else:
                plan = self._watched(bucket, load)
                sources = plan.sources(bucket.memory)
        with watch("account"):
            self.check.account(plan, sources)
        self._plans.append(plan)
        logger.info("Bucket %d of weight version %d: %s", note.index, note.version, watch)

    def _choose(self, first: ReceivedBucket) -> Mode:
        known = _plans.get(self._model)
        if not self._may_replay:
            return Mode.load
        if known is None or not known.fit(self.check.parameters):
            return Mode.learn
        if not known.by_bucket:
            return Mode.load
        return Mode.replay if known.find(0, first.contents) else Mode.learn

    def _watched(self, bucket: ReceivedBucket, load: Callable[[], Any]) -> LoadPlan:
        with observed_writes() as writes:
            try:
                load()
            except Exception as error:
                name = tensor_in_traceback(error, bucket.tensors)
                raise VersionFault(f"tensor '{name}' does not fit the engine's model: {error}") from error
        return self.check.trace(bucket, writes)

    def finish(self, note: BucketNote) -> dict[str, Any]:
        """After the last bucket: what else a loader does, and the receipt.

        Raises:
            VersionFault: as `VersionCheck.finish`; or the model computes with more than what a version brings.
        """
        if takes_adapters(self._model) and not self._adapters:
            raise VersionFault(f"version {note.version} has no adapters, for which the engine was started")
        receipt = self._finish_weights(note) if self._plans else self._leave_weights(note)
        if self._adapters:
            self.check.partial |= self._adapters.finish(self._model)
        return receipt

    def _leave_weights(self, note: BucketNote) -> dict[str, Any]:
        if self._model not in _whole:
            raise VersionFault(f"version {note.version} is of adapters alone, and the engine has no weights yet")
        return self.check.finish(note.digests, whole=False)

    def _finish_weights(self, note: BucketNote) -> dict[str, Any]:
        if self._num_replayed and (afterwards := _afterwards(self._model)):
            afterwards()
        now = self._kept_beside() if self._mode is Mode.learn else {}
        changed = [name for name in now if now[name] != self._before.get(name)]
        derived.refresh(self._model)
        receipt = self.check.finish(note.digests)
        if found := derived.unknown(self._model, self.check.parameters):
            raise VersionFault(f"{found}, and slime does not know how it follows the weights")
        _writers[self._model] = self.check.writers
        if changed:
            logger.info("Every version needs SGLang's loader: it makes more than parameters, such as %s", changed[0])
        if self._mode is Mode.learn:
            _plans[self._model] = LoadPlans(self.check.parameters, [] if changed else self._plans)
        elif self._mode is Mode.replay and self._num_replayed < len(self._plans):
            del _plans[self._model]  # the version is cut into other buckets now: the next one is learnt whole
        logger.info("Version %d: %d of %d buckets were replayed", note.version, self._num_replayed, len(self._plans))
        _whole.add(self._model)
        return receipt

    def _kept_beside(self) -> Mapping[str, int]:
        """What loading must leave alone, unless SGLang has a method that makes it again."""
        if _afterwards(self._model):
            return {}
        kept = derived.kept_beside(self._model, self.check.parameters)
        return {name: tensor_digest(tensor) for name, tensor in kept.items()}


def _afterwards(model: torch.nn.Module) -> Callable[[], None] | None:
    """SGLang's own way to make what depends on parameters that were not written by the model's loader."""
    return getattr(model, "post_load_weights", None)
