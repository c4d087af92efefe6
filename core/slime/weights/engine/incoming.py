"""A version on its way into an engine's model, on one rank.

Version 1 is loaded by SGLang's `load_weights` while its in-place writes are recorded. Later versions replay the
recorded copies, bucket by bucket, as long as they bring the same tensors (`slime.weights.engine.load_plan`). Both are
verified in the same way: digests are of what came, and parameters are compared with it after loading.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from slime.observe.stopwatch import Stopwatch
from slime.weights.engine import derived
from slime.weights.engine.load_plan import Arrived, Route, Routes
from slime.weights.engine.version_check import Transfer, TransferFault, tensor_in_traceback
from slime.weights.engine.writes import observed_writes
from slime.weights.shared.receipt import BucketNote, tensor_digest

logger = logging.getLogger(__name__)
_writers: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, list[str]]] = weakref.WeakKeyDictionary()
"""Of the last complete version: which tensors wrote each parameter."""
_routes: weakref.WeakKeyDictionary[torch.nn.Module, Routes] = weakref.WeakKeyDictionary()
"""Of the last complete version that a loader took in."""


class Arrival:
    """From the first bucket of a version to its last.

    Args:
        parameters: what the version must write.
        may_route: the next version may go the ways of this one, and this one those of the last.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        version: int,
        parameters: Iterable[tuple[str, torch.Tensor]],
        *,
        may_route: bool,
    ) -> None:
        self._model = model
        self.transfer = Transfer(version, parameters, _writers.get(model))
        known = _routes.get(model)
        self._known = known if known and known.lead_into(self.transfer.parameters) else None
        self._may_route = may_route
        self._before: Mapping[str, int] | None = None  # while this version's ways are learnt
        self._taken: list[Route] = []
        self._num_known = 0

    def take(self, note: BucketNote, bucket: Arrived, load: Callable[[], Any]) -> None:
        """Read a bucket, bring it into the parameters, and book that.

        Args:
            load: SGLang's own way, for a bucket that has none yet.

        Raises:
            TransferFault: it is not this bucket's turn, or a tensor does not fit.
        """
        watch = Stopwatch()
        with watch("digest"):
            self.transfer.receive(note, bucket.tensors)
        route = self._known.find(note.index, bucket.contents) if self._known else None
        if note.index == 0 and not route and self._may_route and not self._needs_loader():
            self._before = self._kept_beside()
        with watch("load"):
            if route:
                sources = route.sources(bucket.memory)
                route.take(sources)
                self._num_known += 1
            else:
                route = self._watched(bucket, load)
                sources = route.sources(bucket.memory)
        with watch("account"):
            self.transfer.account(route, sources)
        self._taken.append(route)
        logger.info("Bucket %d of weight version %d: %s", note.index, note.version, watch)

    def _needs_loader(self) -> bool:
        return self._known is not None and not self._known.num_buckets

    def _watched(self, bucket: Arrived, load: Callable[[], Any]) -> Route:
        with observed_writes() as writes:
            try:
                load()
            except Exception as error:
                name = tensor_in_traceback(error, bucket.tensors)
                raise TransferFault(f"tensor '{name}' does not fit the engine's model: {error}") from error
        return self.transfer.trace(bucket, writes)

    def finish(self, note: BucketNote) -> dict[str, Any]:
        """After the last bucket: what else a loader does, and the receipt.

        Raises:
            TransferFault: as `Transfer.finish`; or the model computes with more than what a version brings.
        """
        if self._num_known and (afterwards := _afterwards(self._model)):
            afterwards()
        changed = self._changed_beside()
        derived.refresh(self._model)
        receipt = self.transfer.finish(note.digests)
        if found := derived.unknown(self._model, self.transfer.parameters):
            raise TransferFault(f"{found}, and slime does not know how it follows the weights")
        _writers[self._model] = self.transfer.writers
        self._learn(changed)
        logger.info("Version %d: %d of %d buckets went known ways", note.version, self._num_known, len(self._taken))
        return receipt

    def _changed_beside(self) -> list[str]:
        if self._before is None:
            return []
        now = self._kept_beside()
        return [name for name in now if now[name] != self._before.get(name)]

    def _kept_beside(self) -> Mapping[str, int]:
        """What loading must leave alone, unless SGLang has a method that makes it anew."""
        if _afterwards(self._model):
            return {}
        kept = derived.kept_beside(self._model, self.transfer.parameters)
        return {name: tensor_digest(tensor) for name, tensor in kept.items()}

    def _learn(self, changed: Sequence[str]) -> None:
        if changed:
            logger.info("Every version needs SGLang's loader: it makes more than parameters, such as %s", changed[0])
        if self._before is not None:
            _routes[self._model] = Routes(self.transfer.parameters, [] if changed else self._taken)
        elif self._num_known and self._num_known < len(self._taken):
            del _routes[self._model]  # the version is cut into other buckets now: the next one is learnt whole


def _afterwards(model: torch.nn.Module) -> Callable[[], None] | None:
    """SGLang's own way to make what depends on parameters that were not written by the model's loader."""
    return getattr(model, "post_load_weights", None)
