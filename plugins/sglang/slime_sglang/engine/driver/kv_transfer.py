"""mooncake, which moves KV caches from prefill to decode engines. SGLang does not bring it, nor it what it links."""

from __future__ import annotations

import ctypes
import importlib.util

from slime.config.schema import Device
from slime.errors import SlimeError

PACKAGES = {
    Device.cpu: "mooncake-transfer-engine-non-cuda==0.3.13.post1",
    Device.cuda: "mooncake-transfer-engine-cuda13==0.3.14",
}
LIBRARIES = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""What its compiled half links, also where it sends by TCP, and Debian's and Ubuntu's packages of it."""
OF_CUDA = {"libmlx5.so.1": "ibverbs-providers"}
"""What the one for CUDA links beside."""


def require_mooncake(device: Device) -> None:
    """Look for it where engines are to run: SGLang says of anything that is missing that mooncake is.

    Raises:
        SlimeError: naming what to install.
    """
    wanted = LIBRARIES | (OF_CUDA if device is Device.cuda else {})
    if importlib.util.find_spec("mooncake") is None:
        what, todo = "is not installed", f"Run 'pip install --no-deps {PACKAGES[device]}'."
    elif missing := [library for library in wanted if not _loads(library)]:
        what = f"needs {', '.join(missing)} of the system"
        todo = f"Run 'apt-get install {' '.join(wanted[library] for library in missing)}', or what is like it here."
    else:
        return
    raise SlimeError(f"mooncake, which moves KV caches, {what}", where="rollout.engines", todo=todo)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
