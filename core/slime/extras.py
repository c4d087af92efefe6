"""Packages that an installation may lack: what training needs and planning does not, and distributions of this
repository that are no part of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata

from slime.errors import SlimeError

DISTRIBUTION = "slime-rl"
EXTRAS = {"cuda": "gpu", "cpu": "cpu"}
"""By `cluster.device`: the extra that brings all. Its metadata lists what the other extras have, too."""
IN_A_CHECKOUT = {
    "cuda": "pip install --requirement requirements/gpu.txt, or 'make setup' for a CPU",
    "cpu": "'make setup'",
}

APART: Mapping[str, tuple[str, Sequence[str]]] = {
    "plugins/engines/sglang-rules": ("slime-plugin-sglang-rules", ("engine_check/sglang",)),
    "plugins/engines/returning": ("slime-plugin-returning", ("engine_return/restart",)),
    "plugins/estimates/bubbles": ("slime-plugin-bubbles", ("plan_part/bubbles",)),
    "plugins/estimates/memory": ("slime-plugin-memory", ("memory_estimate/cuda",)),
    "plugins/estimates/nearest": ("slime-plugin-nearest", ("adviser/nearest",)),
    "plugins/estimates/publish": ("slime-plugin-publish", ("plan_part/publish",)),
    "plugins/transports/broadcast": ("slime-plugin-broadcast", ("transport/broadcast",)),
    "plugins/transports/disk": (
        "slime-plugin-disk",
        ("transport/disk", "verb/follow", "weights.path", "weights.full_every"),
    ),
    "plugins/quantizations/fp8-block": ("slime-plugin-fp8-block", ("quantization/fp8", "rollout.fp8")),
    "plugins/adapters/lora": (
        "slime-plugin-lora",
        ("adapter/lora", "train.lora.rank", "train.lora.alpha", "train.lora.targets"),
    ),
    "plugins/explanations/routing-gap": ("slime-plugin-routing-gap", ("explanation/routing-gap",)),
    "plugins/formats/parquet": ("slime-plugin-parquet", ("row_format/.parquet",)),
    "plugins/launchers/ray": ("slime-plugin-ray", ("ray_starter/ray",)),
    "plugins/launchers/ssh": ("slime-plugin-ssh", ("launcher/ssh",)),
    "plugins/observers/console": ("slime-plugin-console", ("subscriber/console",)),
    "plugins/observers/learning": ("slime-plugin-learning", ("subscriber/learning",)),
    "plugins/observers/samples": ("slime-plugin-samples", ("subscriber/samples",)),
    "plugins/observers/trackers": ("slime-plugin-trackers", ("subscriber/trackers",)),
    "plugins/programs/conversations": ("slime-plugin-conversations", ("conversation/chat-template",)),
    "plugins/programs/endpoint": ("slime-plugin-endpoint", ("program/endpoint", "verb/check-chat")),
    "plugins/programs/gym": ("slime-plugin-gym", ("program/gym", "reward/reasoning-gym")),
    "plugins/programs/verifiers": ("slime-plugin-verifiers", ("program/verifiers",)),
    "plugins/rewards/code": ("slime-plugin-code", ("reward/code",)),
    "plugins/rewards/rewards": ("slime-plugin-rewards", ("reward.path",)),
    "plugins/rollouts/ahead": ("slime-plugin-ahead", ("rollout/ahead",)),
    "plugins/verbs/check-reward": ("slime-plugin-check-reward", ("verb/check-reward",)),
    "plugins/verbs/completion": ("slime-plugin-completion", ("verb/completion",)),
    "plugins/verbs/convert": ("slime-plugin-convert", ("verb/convert", "verb/plan convert")),
    "plugins/verbs/eval": ("slime-plugin-eval", ("verb/eval",)),
    "plugins/verbs/fit": ("slime-plugin-fit", ("verb/plan --fit", "verb/probe")),
    "plugins/verbs/preflight": ("slime-plugin-preflight", ("verb/preflight",)),
    "plugins/verbs/watch": ("slime-plugin-watch", ("verb/report", "verb/runs", "verb/samples", "verb/watch")),
    "plugins/rewards/math": ("slime-plugin-math", ("reward/math", "reward/arithmetic")),
}
"""Folder in a checkout -> the distribution, and the names and keys that it brings."""
ASKED_BY: Mapping[str, Sequence[str]] = {
    "plugins/launchers/ssh": ("plugins/launchers/ray",),
    "plugins/programs/conversations": ("plugins/libraries/guarded-workers",),
    "plugins/rollouts/ahead": ("plugins/libraries/guarded-workers",),
    "plugins/verbs/check-reward": ("plugins/libraries/guarded-workers",),
    "plugins/verbs/fit": ("plugins/engines/sglang-rules", "plugins/estimates/memory", "plugins/estimates/publish"),
    "plugins/verbs/preflight": ("plugins/observers/console", "plugins/estimates/memory", "plugins/launchers/ray"),
    "plugins/verbs/watch": ("plugins/observers/console", "plugins/observers/samples"),
}
"""Folder -> others that it needs and that a plan does without."""


def apart(kind: str) -> dict[str, str]:
    """Name -> the distribution of this repository that brings it, of everything of that kind."""
    names = {name: distribution for distribution, brought in APART.values() for name in brought}
    return {name.removeprefix(f"{kind}/"): names[name] for name in names if name.startswith(f"{kind}/")}


def brought_by(kind: str) -> str:
    """What to install so that there is something of a kind."""
    if kind == "model":
        return "the plugin of its family, slime-plugin-<family>,"
    known = sorted({*apart(kind).values()})
    return f"{known[0]} or another plugin" if known else "a plugin"


def how_to_get(wanted: str) -> str:
    """What to do when a name (`<kind>/<name>`) or a key is missing that a distribution of this repository brings;
    empty if none does."""
    for folder, (distribution, brought) in APART.items():
        if wanted in brought:
            folders = " ".join(f"./{each}" for each in (*ASKED_BY.get(folder, ()), folder))
            return f"Run: pip install {distribution}. In a checkout: pip install {folders}, or 'make setup'."
    return ""


def install(device: str) -> str:
    """What to do where something is missing that `cluster.device` needs."""
    return f"Run: pip install '{DISTRIBUTION}[{EXTRAS[device]}]'. In a checkout: {IN_A_CHECKOUT[device]}."


def absent(device: str) -> list[str]:
    """Distributions that a run with this `cluster.device` needs and that are not installed."""
    return [name for name in _asked(EXTRAS[device]) if not _is_installed(name)]


def without(module: str) -> SlimeError | None:
    """What to say when `module` does not import; None if no extra that is absent brings it."""
    top = module.partition(".")[0].lower().replace("_", "-")
    for device in EXTRAS:
        brought = next((name for name in absent(device) if name.lower() == top or name.startswith(f"{top}-")), None)
        if brought:
            return SlimeError(f"this needs {brought}, which is not installed", todo=install(device))
    return None


def _asked(extra: str) -> Iterator[str]:
    for line in metadata.requires(DISTRIBUTION) or ():
        if re.search(rf"extra == ['\"]{extra}['\"]", line):
            yield re.split(r"[^\w.-]", line, maxsplit=1)[0]


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
