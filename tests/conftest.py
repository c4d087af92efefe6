"""Fixtures that tests of several folders use."""

import os
import tempfile
from pathlib import Path

import pytest

from slime.testing.site import site
from tests.running import Run, end_all

__all__ = ["site"]


@pytest.fixture(autouse=True)
def _no_run_outlives_its_test():
    yield
    end_all()


@pytest.fixture
def device():
    """Where Triton kernels run: the GPU if there is one, else Triton's interpreter."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no GPU, and not in Triton's interpreter (test_interpreter.py runs this there)")
    return torch.device("cpu")


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: hundreds of syncs to a disk would take most of a minute."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def _mooncake():
    """What prefill and decode engines need: beside packages, libraries of the system."""
    import torch

    from slime.config.schema import Device
    from slime.errors import SlimeError
    from slime.rollout.kv_transfer import require_mooncake

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
def tiny_model():
    """HF folder of the smallest model: config and tokenizer, no weights."""
    from slime.config.paths import resolve

    return resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")


@pytest.fixture(scope="session")
def engine(tiny_model, tmp_path_factory):
    """A real SGLang engine on the CPU for `tiny_model`, started by the first test that asks; publish before use."""
    from slime.testing.engines import running_engine

    with running_engine(tiny_model, Path(tmp_path_factory.mktemp("engine")) / "engine.log") as process:
        yield process


@pytest.fixture(scope="session")
def endpoint(engine):
    return engine.endpoint


@pytest.fixture(scope="session")
def hf_model():
    """`hf_model(folder, seed)`: transformers' own model of a folder's config.json, fp32, with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(folder, seed=0):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float().eval()

    return build
