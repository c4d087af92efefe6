"""What SGLang refuses, or changes without a word, of an engine's fields: asked by `slime plan` and before a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.topology.engine_checks import EngineCheck


def _rules() -> EngineCheck:
    from slime_sglang.rules.rules import sglang_problems

    return sglang_problems


@hookimpl
def slime_engine_checks() -> Mapping[str, Callable[[], EngineCheck]]:
    return {"sglang": _rules}
