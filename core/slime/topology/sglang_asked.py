"""What the rules about SGLang's fields look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.topology.engines import EngineGroup, home_of


@dataclass(frozen=True)
class Asked:
    """What the rules look at: one group's fields and the model's sizes, by Megatron's names."""

    cfg: SlimeConfig
    group: EngineGroup
    model: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        return self.group.sglang.get(key, default)

    def is_own(self, key: str) -> bool:
        """Whether the group itself sets a field, or is the only one for which it is set."""
        own = self.cfg.rollout.engines.get(self.group.name)
        return key in self.group.sglang and (len(self.cfg.rollout.engines) < 2 or bool(own and key in own.sglang))

    def problem(self, key: str, what: str, todo: str) -> SlimeError:
        return SlimeError(what, where=home_of(self.cfg, self.group.name, key), todo=todo)


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
