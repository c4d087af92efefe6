"""What is wrong with the options of this plugin's rewards, told before a run starts and without running their code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime.errors import SlimeError
from slime_rewards.general import function, route


def problems(name: str, options: Mapping[str, Any], where: str = "reward") -> Sequence[SlimeError]:
    """Each thing that is wrong.

    Args:
        name: of the reward.
        options: of its factory.
        where: the key whose reward it is.
    """
    try:
        if name == "function" and isinstance(options.get("path"), str):
            function.examine(options["path"], options.get("arguments") or {}, options.get("sha256"))
        if name == "route":
            found: list[SlimeError] = []
            for value, chosen in route.choices(options).items():
                found += problems(chosen.name, chosen.options, f"{where}.options.rewards.{value}")
            return found
    except SlimeError as error:
        return [error if error.where else error.under(where)]
    return []
