"""What the engine says of its tokens is what transformers says, also after a second publish (real SGLang, on a CPU)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.testing.generation import check_generation
from slime_plugin_mimo import hf


@pytest.mark.slow
def test_generation_follows_the_weights(tmp_path: Path) -> None:
    hf.register()
    check_generation("pkg://slime_plugin_mimo/assets/mimo-tiny", tmp_path)
