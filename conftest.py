"""What holds for every test, the plugins' own included, also where they are run alone."""

import os
import signal
from contextlib import ExitStack

import pytest

from slime.imports import importing

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


_collection = ExitStack()
_collection.enter_context(importing())  # tests are imported in it, and torch with them


def pytest_collection_finish():
    _collection.close()


SHARED = ("finished", "engine", "bare")
"""Fixtures of a session that take seconds to make: who needs one runs where it is, in one process of several."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    _skip_without_devices(items)
    if config.getoption("loadgroup", default=False):
        for item in items:
            for name in SHARED:
                if name in getattr(item, "fixturenames", ()):
                    item.add_marker(pytest.mark.xdist_group(name))
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)  # short files fill the end


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of `--dist loadgroup`: what is in no group goes file by file, for the sake of fixtures of modules."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupOrFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

    return GroupOrFile(config, log) if config.getoption("dist") == "loadgroup" else None


def _skip_without_devices(items):
    """`gpu` tests run where there are enough CUDA devices: one, or as many as the mark says, `gpu(2)`."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    if not marked or os.environ.get("TRITON_INTERPRET") == "1":
        return
    import torch

    for item, mark in marked:
        need, have = mark.args[0] if mark.args else 1, torch.cuda.device_count()
        if have < need:
            item.add_marker(pytest.mark.skip(reason=f"needs {need} CUDA device(s), there are {have}"))
