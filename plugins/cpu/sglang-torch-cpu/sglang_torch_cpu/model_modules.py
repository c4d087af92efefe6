"""Models that an engine does not serve, not imported: SGLang's scheduler takes two seconds for all 210 modules."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LEFT_OUT = "SGLANG_DISABLED_MODEL_ARCHS"
"""SGLang's variable: names of modules of `sglang.srt.models`, with commas between them."""
OTHERS = "SGLANG_EXTERNAL_MODEL_PACKAGE"
"""SGLang's variable: a further package of models, to which `LEFT_OUT` applies as well."""


def leave_out(fields: Mapping[str, Any]) -> None:
    """Set SGLang's variable by the fields of `ServerArgs`, unless the user has set one of the two."""
    if not (os.environ.get(LEFT_OUT) or os.environ.get(OTHERS)):
        os.environ[LEFT_OUT] = ",".join(unneeded(fields))


def unneeded(fields: Mapping[str, Any]) -> list[str]:
    """The modules that say nothing of the architectures in config.json; none where SGLang chooses another class than
    those: for drafts, for its Transformers backend, for models of several modalities."""
    config = json.loads((Path(fields["model_path"]) / "config.json").read_text())
    config |= json.loads(fields.get("json_model_override_args") or "{}")
    of_parts = any(isinstance(value, dict) and "model_type" in value for value in config.values())
    if of_parts or fields.get("speculative_algorithm") or fields.get("model_impl", "auto") not in ("auto", "sglang"):
        return []
    texts = {file.stem: file.read_text() for file in models_folder().glob("*.py")}
    names = config.get("architectures") or ()
    if not names or not all(any(f"class {name}(" in text for text in texts.values()) for name in names):
        return []
    return sorted(module for module, text in texts.items() if not any(name in text for name in names))


def models_folder() -> Path:
    """SGLang's modules of models, found without importing any of it."""
    sglang = find_spec("sglang")
    assert sglang, "it is installed"
    assert sglang.origin, "it has an __init__.py"
    return Path(sglang.origin).parent / "srt/models"
