"""Models of GLM-4's families, small enough to train in every layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CONFIGS = Path(__file__).parents[3] / "models/glm4/tests/configs"
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96}
HF: dict[str, Any] = json.loads((CONFIGS / "dense.json").read_text()) | SMALL
EXPERTS: dict[str, Any] = json.loads((CONFIGS / "moe.json").read_text()) | SMALL
"""Also with a multi-token prediction layer."""


def write_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(HF, folder)
    return folder
