"""The tiny tokenizer that the demo trains with: characters, a chat template, one end token."""

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from slime.data.tokenize import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder() -> Path:
    return Path(str(files("slime_plugin_glm4") / "assets" / "glm4-tiny"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return load_tokenizer(tokenizer_folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write text or bytes to `rows.jsonl` (or `name`) and give its path."""

    def write(content: Any, name: str = "rows.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
