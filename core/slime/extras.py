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
    "plugins/sglang": ("slime-sglang", ("engine_check/sglang",)),
    "plugins/sglang": ("slime-sglang", ("engine_return/restart",)),
    "plugins/tools": ("slime-tools", ("plan_part/bubbles",)),
    "plugins/tools": ("slime-tools", ("memory_estimate/cuda",)),
    "plugins/tools": ("slime-tools", ("adviser/nearest",)),
    "plugins/tools": ("slime-tools", ("plan_part/publish",)),
    "plugins/sglang": ("slime-sglang", ("transport/broadcast",)),
    "plugins/sglang": (
        "slime-sglang",
        ("transport/disk", "verb/follow", "weights.path", "weights.full_every"),
    ),
    "plugins/megatron": ("slime-megatron", ("quantization/fp8", "rollout.fp8")),
    "plugins/megatron": (
        "slime-megatron",
        ("adapter/lora", "train.lora.rank", "train.lora.alpha", "train.lora.targets"),
    ),
    "plugins/megatron": ("slime-megatron", ("explanation/routing-gap",)),
    "plugins/tools": ("slime-tools", ("row_format/.parquet",)),
    "plugins/cluster": ("slime-cluster", ("ray_starter/ray",)),
    "plugins/cluster": ("slime-cluster", ("launcher/ssh",)),
    "plugins/observers": ("slime-observers", ("subscriber/console",)),
    "plugins/observers": ("slime-observers", ("subscriber/learning",)),
    "plugins/observers": ("slime-observers", ("subscriber/samples",)),
    "plugins/observers": ("slime-observers", ("subscriber/trackers",)),
    "plugins/agents": ("slime-agents", ("conversation/chat-template",)),
    "plugins/agents": ("slime-agents", ("program/endpoint", "verb/check-chat")),
    "plugins/agents": ("slime-agents", ("program/gym", "reward/reasoning-gym")),
    "plugins/agents": ("slime-agents", ("program/verifiers",)),
    "plugins/rewards": ("slime-rewards", ("reward/code",)),
    "plugins/rewards": ("slime-rewards", ("reward.path",)),
    "plugins/filters": ("slime-filters", ("rollout/ahead",)),
    "plugins/tools": ("slime-tools", ("verb/check-reward",)),
    "plugins/tools": ("slime-tools", ("verb/completion",)),
    "plugins/tools": ("slime-tools", ("verb/convert", "verb/plan convert")),
    "plugins/tools": ("slime-tools", ("verb/eval",)),
    "plugins/tools": ("slime-tools", ("verb/plan --fit", "verb/probe")),
    "plugins/tools": ("slime-tools", ("verb/preflight",)),
    "plugins/tools": ("slime-tools", ("verb/report", "verb/runs", "verb/samples", "verb/watch")),
    "plugins/rewards": ("slime-rewards", ("reward/math", "reward/arithmetic")),
}
"""Folder in a checkout -> the distribution, and the names and keys that it brings."""
ASKED_BY: Mapping[str, Sequence[str]] = {
    "plugins/cluster": ("plugins/cluster",),
    "plugins/agents": ("plugins/libraries/guarded-workers",),
    "plugins/filters": ("plugins/libraries/guarded-workers",),
    "plugins/tools": ("plugins/libraries/guarded-workers",),
    "plugins/tools": ("plugins/sglang", "plugins/tools", "plugins/tools"),
    "plugins/tools": ("plugins/observers", "plugins/tools", "plugins/cluster"),
    "plugins/tools": ("plugins/observers", "plugins/observers"),
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
