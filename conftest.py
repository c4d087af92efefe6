"""What holds for every test, the plugins' own included, also where they are run alone."""

import atexit
import gc
import os
import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # while tests are imported, and torch with them: a quarter of the time


def pytest_collection_finish():
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


def pytest_collection_modifyitems(items):
    """`gpu` tests run where there are enough CUDA devices: one, or as many as the mark says, `gpu(2)`."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    if not marked or os.environ.get("TRITON_INTERPRET") == "1":
        return
    import torch

    for item, mark in marked:
        need, have = mark.args[0] if mark.args else 1, torch.cuda.device_count()
        if have < need:
            item.add_marker(pytest.mark.skip(reason=f"needs {need} CUDA device(s), there are {have}"))
