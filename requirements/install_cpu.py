"""Install the CPU set-up: cpu.txt, and at the same time torch and torchvision.

    .venv/bin/python requirements/install_cpu.py

Of the latter two, the first builds of their versions that this machine's pip can reach. The package index has CUDA
builds alone, which import only beside several GB of CUDA libraries. PyTorch's own index has CPU builds, and so may the
indexes that pip is configured with.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

CPU_BUILDS = ("torch==2.13.0+cpu", "torchvision==0.28.0+cpu")
ANY_BUILDS = ("torch==2.13.0", "torchvision==0.28.0")
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PINNED = Path(__file__).with_name("cpu.txt")
NUM_PIPS = 4
"""Each installs a part of the file: one alone would keep a single core busy for most of the set-up. They are more than
the cores of a small machine, because triton alone takes as long as half of the others."""
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
# Appended by slime's requirements/install_cpu.py: torchvision imports only where these two operators exist, and the
# compiled half of this build, which brings them, needs CUDA. Calling them is an error, as without this.
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def wrong_platform(system: str, machine: str) -> str:
    """Why the set-up cannot work on such a machine; empty if it can."""
    if (system, machine) == ("Linux", "x86_64"):
        return ""
    here = f"slime trains on Linux on x86_64 (WSL 2 is one), and this is {system} on {machine}"
    why = "triton, sglang and mooncake have no wheels for it" if system != "Linux" else "llguidance had no wheel for it"
    plans = "pip install --requirement requirements/plan.txt"
    return f"{here}: {why}. Planning works everywhere with Python 3.11 to 3.13: {plans}"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


def pip(*wanted: str) -> list[str]:
    """The command that installs what is wanted. Modules are compiled later, on every core."""
    options = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "install", *options, *wanted]


def declare_operators() -> None:
    """Let a torchvision import whose compiled half does not fit this torch."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None, "it was just installed"
    assert spec.origin is not None, "a package with an __init__.py has one"
    extension = Path(spec.origin).with_name("extension.py")
    if DECLARATIONS not in (text := extension.read_text(encoding="utf-8")):
        extension.write_text(text + DECLARATIONS, encoding="utf-8")


def start_rest(stack: ExitStack) -> list[subprocess.Popen[bytes]]:
    """The pips that install cpu.txt; at the latest `stack` waits for them."""
    lines = [line for line in PINNED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    parts = [lines[number::NUM_PIPS] for number in range(NUM_PIPS)]
    return [stack.enter_context(subprocess.Popen(pip("--no-deps", *part))) for part in parts]


def install_torch(rest: list[subprocess.Popen[bytes]]) -> tuple[str, str]:
    """Returns which of the sources it came from, and why the last one that was tried did not do, each empty if none."""
    reason = ""
    for source, wanted in SOURCES.items():
        if "--no-deps" not in wanted:  # two pips would write the same packages
            for running in rest:
                running.wait()
        installed = subprocess.run(pip(*wanted), capture_output=True, text=True)
        if not installed.returncode:
            return source, ""
        reason = installed.stderr
    return "", reason


def main() -> int:
    if refusal := wrong_platform(platform.system(), platform.machine()):
        print(refusal)
        return 1
    with ExitStack() as stack:
        rest = start_rest(stack)
        source, reason = install_torch(rest)
    if any(ended.returncode for ended in rest):
        return 1  # pip has said why
    if not source:
        print(f"torch cannot be installed: pip finds none of its builds for Python {sys.version.split()[0]}\n{reason}")
        return 1
    imported = python("-c", "import torchvision")
    if "torchvision::nms does not exist" in imported.stderr:
        declare_operators()
        imported = python("-c", "import torchvision")
    print(f"torch {'is installed' if not imported.returncode else 'does not import'}: {source}")
    sys.stderr.write(imported.stderr)
    return imported.returncode


if __name__ == "__main__":
    sys.exit(main())
