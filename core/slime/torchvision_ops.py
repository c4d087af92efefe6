"""Make `import torchvision` work beside a CPU build of torch.

SGLang and transformers' model classes import torchvision, of which the package index has CUDA builds only. Such a
build imports on a CPU once the two operators its compiled half would have registered are declared.
"""

from __future__ import annotations

import importlib
import sys

_library: object = None  # the declarations live as long as this reference
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def ensure() -> None:
    """Import torchvision; declare its operators first where its compiled half does not fit this torch."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        _forget_half_import()
        _declare_operators()
        importlib.import_module("torchvision")


def _forget_half_import() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_operators() -> None:
    import torch

    global _library
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    _library = library
