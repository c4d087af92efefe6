"""Which versions of slime a plugin says it was made for."""

from __future__ import annotations

import re
from collections.abc import Sequence


def other_versions(distribution: str, version: str, requires: Sequence[str]) -> str:
    """The versions of `distribution` that are required, if `version` is none of them; else empty.

    Args:
        requires: requirements as in a distribution's metadata ("slime-rl<0.2,>=0.1").
    """
    major, minor, *_ = version.split(".")
    bounds = (f">={major}.{minor}", f"<{major}.{int(minor) + 1}")
    usual = {f"{distribution}{','.join(order)}" for order in (bounds, bounds[::-1])}
    if usual & {re.sub(r"\[\w+\]", "", each, count=1) for each in requires}:  # less an extra, as of model families
        return ""  # as docs/hooks.md has it; `packaging` would take a quarter of the time of `slime --help`
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    for requirement in map(Requirement, requires):
        applies = requirement.marker is None or requirement.marker.evaluate()
        ours = applies and canonicalize_name(requirement.name) == distribution
        if ours and not requirement.specifier.contains(version, prereleases=True):
            return str(requirement.specifier)
    return ""
