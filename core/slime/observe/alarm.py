"""The alarm of a step: engine and trainer must agree on the log-probs of the same tokens under the same weights."""

from __future__ import annotations

from collections.abc import Mapping

from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.observe.metrics import LOGPROB_DIFF
from slime.topology.engines import engine_groups

_NAMES = {
    "gap/weights": "weights in FP8",
    "gap/experts": "other experts",
    "gap/activations": "activations in FP8",
    "gap/rest": "all else",
}
_IN_BF16 = "keep more modules in BF16, by the quantization_config of an FP8 folder as rollout.fp8, or raise the alarm"
_TODO = {
    "gap/weights": f"This is what E4M3 costs this model: {_IN_BF16}.",
    "gap/experts": f"Rounding sends tokens to other experts: {_IN_BF16}.",
    "gap/activations": f"Engines round activations too: {_IN_BF16}.",
}


def alarm(cfg: SlimeConfig, values: Mapping[str, float], step: int) -> SlimeError | None:
    """What is wrong, or None: the mean difference is above `observe.logprob_alarm`.

    Args:
        values: metrics of the step, with `gap/...` where the trainer could tell what makes the difference.
    """
    limit, found = cfg.observe.logprob_alarm, values.get(LOGPROB_DIFF)  # None if all tokens are of older weights
    if not limit or found is None or found <= limit:
        return None
    kv_cache = ", ".join(_kv_caches(cfg))
    what = f"engine and trainer differ by {found:.4f} nats a token, more than observe.logprob_alarm={limit:g}"
    settings = f"their precision{f' (kv_cache_dtype is {kv_cache})' if kv_cache else ''}, rotary and sampling settings"
    todo = f"Compare {settings}; raise the alarm only if the gap is expected."
    if causes := {name: values[name] for name in _NAMES if name in values}:
        what += ": " + ", ".join(f"{_NAMES[name]} {value:.4f}" for name, value in causes.items())
        largest = max(causes, key=lambda name: causes[name])
        todo = _TODO.get(largest, f"FP8 weights do not explain it: compare {settings}, attention and MoE backends.")
    return SlimeError(what, where=f"step {step}", todo=todo)


def _kv_caches(cfg: SlimeConfig) -> list[str]:
    """What engines keep keys and values in, where somebody set it."""
    asked = (str(group.sglang.get("kv_cache_dtype", "auto")) for group in engine_groups(cfg))
    return [dtype for dtype in dict.fromkeys(asked) if dtype != "auto"]
