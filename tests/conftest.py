"""Fixtures that tests of several folders use."""

import copy

import pytest

from slime import plugins
from slime.compose import compose
from tests.running import NO_CHECKPOINTS, Run, end_all
from tests.site import site

__all__ = ["site"]


_files_of = compose._files
_composed = {}


def _composed_once(choices, groups, name="config"):
    """Files of the same choices and plugins are composed once: that is most of what a plan costs, and hundreds of tests
    choose the same."""
    if name != "config":
        return _files_of(choices, groups, name)
    if (key := (plugins.load(), *choices)) not in _composed:
        _composed[key] = _files_of(choices, groups)
    return copy.deepcopy(_composed[key])


@pytest.fixture(scope="session", autouse=True)
def _files_of_the_same_choices_are_composed_once():
    """`plugins/conftest.py` has it too, for sessions without a test of core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "_files", _composed_once)
        yield


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test():
    yield
    end_all()


@pytest.fixture(scope="session")
def _mooncake():
    """What prefill and decode engines need: beside packages, libraries of the system."""
    import torch

    from slime.config.schema import Device
    from slime.errors import SlimeError
    from slime_sglang.engine.driver.kv_transfer import require_mooncake

    try:
        require_mooncake(Device.cuda if torch.cuda.is_available() else Device.cpu)
    except SlimeError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Run:
    """The laptop recipe, shortened, from its start to its end: trainer and engine on devices of their own, weights
    through shared memory."""
    return Run(tmp_path_factory.mktemp("finished")).start().succeed()


@pytest.fixture(scope="session")
def demonstrated(tmp_path_factory):
    """What stands for the supervised stage of every command that keeps the laptop's own: it is run once."""
    words = {"algo": "sft", "eval.path": "null", **NO_CHECKPOINTS}
    run = Run(tmp_path_factory.mktemp("demonstrated"), shortened=words).start().succeed()
    return {"model.init": "checkpoint", "model.path": run.path / "export", "sft.num_steps": 0, **NO_CHECKPOINTS}


@pytest.fixture(scope="session")
def taught(demonstrated, tmp_path_factory):
    """The demo after a quarter of its reinforcement learning."""
    words = {**demonstrated, "run.num_steps": 10}
    return Run(tmp_path_factory.mktemp("taught"), shortened=words, forked=True).start().succeed()
