"""Megatron-core without flashinfer, of which a stand-in is installed that says when somebody imports it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test has a process import Megatron-core
SAYS = "print('imported')"
KEEPS_OUT = (
    "import megatron_core_portable as portable\nportable.keep_flashinfer_out()\nportable.keep_flashinfer_out()\n"
)
DEFECT = "import megatron.core"
SEEN = "import sys\nprint('flashinfer' in sys.modules)"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer/__init__.py").write_text(SAYS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def printed(code: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.usefixtures("installed")
def test_defect_is_still_there() -> None:
    assert printed(f"{DEFECT}\n{SEEN}") == ["imported", "True"]


@pytest.mark.usefixtures("installed")
def test_megatron_core_does_without() -> None:
    assert printed(f"{KEEPS_OUT}{DEFECT}\n{SEEN}") == ["False"]


@pytest.mark.usefixtures("installed")
def test_a_trainer_does_without() -> None:
    """The whole of its imports, those of its blocks and families too."""
    from_plugins = "from slime import plugins\nplugins.load().models.create('glm4')\n"
    assert printed(f"import slime_megatron.train.trainer\n{from_plugins}{SEEN}") == ["False"]


@pytest.mark.usefixtures("installed")
def test_who_wants_it_gets_it() -> None:
    assert printed(f"{KEEPS_OUT}{DEFECT}\nimport flashinfer") == ["imported"]
    assert printed(f"{KEEPS_OUT}import flashinfer\n{DEFECT}\n{SEEN}") == ["imported", "True"]
