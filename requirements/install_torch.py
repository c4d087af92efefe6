"""Install the CPU set-up's torch and torchvision: the first builds of these versions that this machine's pip can reach.

    .venv/bin/python requirements/install_torch.py

The package index has CUDA builds alone, which import only beside several GB of CUDA libraries. PyTorch's own index has
CPU builds, and so may the indexes that pip is configured with.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

CPU_BUILDS = ("torch==2.13.0+cpu", "torchvision==0.28.0+cpu")
ANY_BUILDS = ("torch==2.13.0", "torchvision==0.28.0")
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
SOURCES = {
    "CPU builds, from pip's own indexes": ("--no-deps", *CPU_BUILDS),
    f"CPU builds, from {PYTORCH_INDEX}": ("--no-deps", "--index-url", PYTORCH_INDEX, "--retries", "1", *CPU_BUILDS),
    "a CPU build of torch from pip's own indexes, torchvision without operators": (
        "--no-deps",
        CPU_BUILDS[0],
        ANY_BUILDS[1],
    ),
    "CUDA builds with their libraries, several GB": ANY_BUILDS,
}
"""What is taken -> what pip is asked for, in the order in which it is tried."""

DECLARATIONS = """
# Appended by slime's requirements/install_torch.py: torchvision imports only where these two operators exist, and the
# compiled half of this build, which brings them, needs CUDA. Calling them is an error, as without this.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def declare_operators() -> None:
    """Let a torchvision import whose compiled half does not fit this torch."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None, "it was just installed"
    assert spec.origin is not None, "a package with an __init__.py has one"
    extension = Path(spec.origin).with_name("extension.py")
    if DECLARATIONS not in (text := extension.read_text(encoding="utf-8")):
        extension.write_text(text + DECLARATIONS, encoding="utf-8")


def main() -> int:
    reason = ""
    for source, wanted in SOURCES.items():
        installed = python("-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", *wanted)
        if installed.returncode:
            reason = installed.stderr
            continue
        if "torchvision::nms does not exist" in python("-c", "import torchvision").stderr:
            declare_operators()
        imported = python("-c", "import torch, torchvision")
        print(f"torch {'is installed' if not imported.returncode else 'does not import'}: {source}")
        sys.stderr.write(imported.stderr)
        return imported.returncode
    print(f"torch cannot be installed: pip finds none of its builds for Python {sys.version.split()[0]}\n{reason}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
