"""Keeps flashinfer out of training processes.

`import megatron.core` loads its inference package, which imports flashinfer where it is installed, as beside SGLang.
That initialises CUDA in a process which only prepares, and takes its share of a device that an engine measures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

UNWANTED = "flashinfer"
IMPORTER = "megatron.core.inference.contexts.dynamic_context"
"""Which goes on without it. Nobody trains through this module."""


class _Finder(MetaPathFinder):
    """Finds `IMPORTER` as everybody does, and has it run as if `UNWANTED` were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != IMPORTER or UNWANTED in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = spec and spec.loader
        if loader:
            run = loader.exec_module

            def run_without(module: ModuleType) -> None:
                sys.modules[UNWANTED] = None  # type: ignore[assignment]  # which makes its import an ImportError
                try:
                    run(module)
                finally:
                    del sys.modules[UNWANTED]

            loader.exec_module = run_without
        return spec


def keep_flashinfer_out() -> None:
    """Call before the first import of Megatron-core. Whoever imports flashinfer for itself gets it."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
