"""What plugins add to the config: keys to sections (transports to `weights`, quantizations to `rollout`, adapters to
`train`), and prompt sets to `data.path` and its like."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, TypeVar

from slime.config.rollout import RolloutConfig
from slime.config.train import TrainConfig
from slime.config.weights import WeightsConfig

T = TypeVar("T")
SECTIONS: Mapping[str, tuple[str, type[Any]]] = {
    "transport": ("weights", WeightsConfig),
    "quantization": ("rollout", RolloutConfig),
    "adapter": ("train", TrainConfig),
}
"""By the kind of a contribution, the section and the class that its schema is a subclass of."""
PROMPT_SETS: dict[str, Callable[[str], Path]] = {}
"""By scheme, what gives the file of an address (hook `slime_prompt_sets`). `slime.plugins.load` fills it."""
_schemas: dict[str, dict[str, type[Any]]] = {kind: {} for kind in SECTIONS}


def add_keys(kind: str, schemas: Mapping[str, type]) -> None:
    """Have the section the fields of these subclasses too, and no others: those of what is installed, by name.
    `slime.plugins.load` calls this."""
    _schemas[kind] = dict(sorted(schemas.items()))


def schemas_of(kind: str) -> Mapping[str, type]:
    return _schemas[kind]


def extended(section: type[T]) -> type[T]:
    """The class of a section with the keys of everything installed; other classes are returned as they are."""
    kind = next((kind for kind, (_, base) in SECTIONS.items() if base is section), None)
    schemas: Any = tuple(_schemas[kind].values()) if kind else ()
    return _joined(section.__name__, schemas) if schemas else section


@functools.cache
def _joined(name: str, schemas: tuple[type[Any], ...]) -> Any:
    return schemas[0] if len(schemas) == 1 else make_dataclass(name, [], bases=schemas)
