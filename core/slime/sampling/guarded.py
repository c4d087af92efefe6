"""Filters, buffer policy and estimator of a run: what goes wrong in their code ends it in a line that names them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guarded_workers.worker import describe
from slime.algo.stages import shared_with
from slime.config.schema import AlgoConfig, FilterConfig
from slime.contracts import Stateful
from slime.errors import SlimeError
from slime.estimator import Attempt
from slime.registry import Registry
from slime.time_limit import DidNotReturnError, within
from slime.types import Decision, Group

if TYPE_CHECKING:
    import numpy as np

REASON = re.compile(r"[a-z0-9_]+")
"""The letters of a reason, which becomes part of a metric's name."""


class _Guarded:
    """A plugin's object, made by the factory of that `name` and called under guard; a call may take `patience_s`
    seconds."""

    _key = ""
    """The key that chooses it, where this is not its kind."""

    def __init__(self, registry: Registry[Any], name: str, options: Mapping[str, Any], patience_s: float) -> None:
        self._chosen, self._patience_s, self._path = registry.get(name), patience_s, options.get("path")
        self._made: Any = self._watched("its factory", registry.create, name, **options)

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._watched(method, getattr(self._made, method), *arguments)

    def _watched(self, what: str, function: Any, *arguments: Any, **options: Any) -> Any:
        try:
            with within(self._patience_s):
                return function(*arguments, **options)
        except SlimeError:
            raise
        except DidNotReturnError as error:
            raise self._fault(f"{what} {error}") from error
        except (Exception, SystemExit) as error:
            raise self._fault(f"{what} raised {describe(error)}") from error

    def _decision(self, method: str, *arguments: Any) -> Decision:
        answer = self._call(method, *arguments)
        if not isinstance(answer, Decision) or not (answer.keep or REASON.fullmatch(answer.reason)):
            right = "a Decision, with a reason of the letters a-z, 0-9 and _ where it drops the group"
            raise self._fault(f"{method} gave {answer!r:.80}, not {right}")
        return answer

    def _fault(self, what: str) -> SlimeError:
        chosen = self._chosen
        where = f"{chosen.kind} '{chosen.name}' of {chosen.distribution} {chosen.version}"
        if chosen.name == "function":
            where = f"{chosen.kind} {self._path}"
        key = self._key or chosen.kind
        todo = f"Correct it, or choose another with {key}=<name>; the run goes on from its last checkpoint."
        return SlimeError(what, where=where, todo=todo)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._call("state_dict")
        if not isinstance(state, Mapping):
            raise self._fault(f"state_dict gave {state!r:.80}, not a dict")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call("load_state_dict", state)


class GuardedFilter(_Guarded):
    """A `slime.contracts.SampleFilter`, or one that shapes.

    Raises (every method):
        SlimeError: the plugin raised, exited, did not return, or answered something else than its contract says.
    """

    def decide(self, group: Group) -> Decision:
        return self._decision("decide", group)

    def shape(self, group: Group) -> None:
        """Add to the rewards of `group` what the filter says, if it is one that shapes."""
        if hasattr(self._made, "shape"):
            answer = self._call("shape", group)
            if not are_amounts(answer, len(group.samples)):
                raise self._fault(f"shape gave {answer!r:.80}, not {len(group.samples)} finite numbers")
            for sample, amount in zip(group.samples, answer, strict=True):
                sample.shaping += float(amount)


class FilterChain:
    """The filters of a run one after another: the first one that drops a group decides. Raises as `GuardedFilter`."""

    def __init__(self, registry: Registry[Any], cfg: FilterConfig, patience_s: float) -> None:
        chosen = [(cfg.name, cfg.options), *cfg.then.items()]
        self._filters = [GuardedFilter(registry, name, options, patience_s) for name, options in chosen]

    def decide(self, group: Group) -> Decision:
        for sample in group.samples:
            sample.shaping = 0.0  # a group that comes a second time is shaped as if for the first
        for each in self._filters:
            each.shape(group)
            decision = each.decide(group)
            if not decision.keep:
                return decision
        return Decision(keep=True)


class GuardedBuffer(_Guarded):
    """A `slime.contracts.BufferPolicy`; raises as `GuardedFilter`."""

    def put(self, group: Group, version: int) -> Decision:
        return self._decision("put", group, version)

    def take(self, count: int, version: int) -> list[Group]:
        answer = self._call("take", count, version)
        are_groups = isinstance(answer, list) and all(isinstance(group, Group) for group in answer)
        if not are_groups or len(answer) > max(0, count):
            raise self._fault(f"take gave {answer!r:.80}, not a list of at most {count} groups")
        return list[Group](answer)

    def __len__(self) -> int:
        return int(self._call("__len__"))

    @property
    def dropped(self) -> Counter[str]:
        """Groups that it dropped while it held them, by reason, of a policy that counts them."""
        counts: Any = getattr(self._made, "dropped", Counter())
        if not isinstance(counts, Counter) or not all(REASON.fullmatch(str(reason)) for reason in counts):
            raise self._fault(f"dropped is {counts!r:.80}, not a Counter of reasons of the letters a-z, 0-9 and _")
        return counts


class GuardedEstimator(_Guarded):
    """The `slime.estimator.Estimator` that `algo` chooses, the only one of a run; raises as `GuardedFilter`."""

    _key = "algo.advantage"

    def __init__(self, registry: Registry[Any], algo: AlgoConfig, patience_s: float) -> None:
        options = {**shared_with(algo, registry.get(algo.advantage)), **algo.advantage_options}
        super().__init__(registry, algo.advantage, options, patience_s)

    @property
    def min_samples(self) -> int:
        return int(self._made.min_samples)

    def advantages(self, groups: Sequence[Sequence[Attempt]]) -> list[list[np.ndarray]]:
        """[num_loss_tokens] fp32 of each attempt."""
        found, sizes = self._call("advantages", groups), [len(group) for group in groups]
        if (gave := [len(of_group) for of_group in found]) != sizes:
            raise self._fault(f"gave {gave} advantages, not {sizes}")
        pairs = (zip(group, of_group, strict=True) for group, of_group in zip(groups, found, strict=True))
        return [[self._spread(*pair) for pair in of_group] for of_group in pairs]

    def _spread(self, attempt: Attempt, advantage: Any) -> np.ndarray:
        import numpy as np  # a plan takes names from here, and does without

        values = np.asarray(advantage, dtype=np.float32)
        if values.shape not in ((), (attempt.num_loss_tokens,)) or not np.isfinite(values).all():
            what = f"gave {advantage!r:.80} for a sample of {attempt.num_loss_tokens} loss tokens"
            raise self._fault(f"{what}, not one finite number, or one for each")
        return np.broadcast_to(values, attempt.num_loss_tokens)

    def state_dict(self) -> dict[str, Any]:
        """By its name, as another one begins without; empty: it keeps nothing."""
        return {self._chosen.name: super().state_dict()} if isinstance(self._made, Stateful) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if isinstance(self._made, Stateful) and self._chosen.name in state:
            super().load_state_dict(state[self._chosen.name])


def are_amounts(answer: Any, count: int) -> bool:
    """Whether a filter's `shape` may answer so, of a group of `count` samples."""
    if not isinstance(answer, Sequence) or len(answer) != count:
        return False
    return all(isinstance(each, int | float) and math.isfinite(each) for each in answer)
