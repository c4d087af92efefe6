"""The alarm of a step: engine and trainer must agree on the log-probs of the same tokens under the same weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slime.errors import SlimeError
from slime.observe.metrics import LOGPROB_DIFF
from slime.plugins import load
from slime.topology.engines import EngineGroup


def alarm(
    limit: float | None, groups: Iterable[EngineGroup], values: Mapping[str, float], step: int
) -> SlimeError | None:
    """The problem where the mean difference is above `observe.logprob_alarm`, or None. The step's metrics have
    `gap/...` where an explanation found a cause of the difference."""
    found = values.get(LOGPROB_DIFF)  # None if all tokens are of older weights
    if not limit or found is None or found <= limit:
        return None
    kv_caches = dict.fromkeys(str(group.sglang.get("kv_cache_dtype", "auto")) for group in groups)
    kv_cache = ", ".join(dtype for dtype in kv_caches if dtype != "auto")
    what = f"engine and trainer differ by {found:.4f} nats a token, more than observe.logprob_alarm={limit:g}"
    settings = f"their precision{f' (kv_cache_dtype is {kv_cache})' if kv_cache else ''}, rotary and sampling settings"
    todo = f"Compare {settings}; raise the alarm only if the gap is expected."
    causes = {name: cause for chosen in load().explanations for name, cause in chosen.factory().causes.items()}
    if measured := {name: values[name] for name in causes if name in values}:
        what += ": " + ", ".join(f"{causes[name].label} {value:.4f}" for name, value in measured.items())
        todo = causes[max(measured, key=lambda name: measured[name])].todo.replace("{settings}", settings)
    return SlimeError(what, where=f"step {step}", todo=todo)
