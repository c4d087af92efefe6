"""What is said where mooncake, or what it links, is missing."""

import importlib.util

import pytest

from slime.compose.compose import examine
from slime.config.schema import Device
from slime.errors import SlimeError
from slime_sglang.engine.driver import kv_transfer
from slime_sglang.engine.driver.kv_transfer import LIBRARIES, OF_CUDA, PACKAGES, require_mooncake


@pytest.fixture
def installed(monkeypatch):
    """`installed(whether)`: mooncake is to be found by Python, or not; of the system's libraries nothing is changed."""
    find = importlib.util.find_spec

    def install(whether):
        there = find("json") if whether else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: there if name == "mooncake" else find(name))

    return install


def test_a_package_that_is_missing_is_named(installed):
    installed(False)
    with pytest.raises(
        SlimeError, match=r"mooncake, .* is not installed\. Run 'pip install --no-deps mooncake-.*cuda13"
    ):
        require_mooncake(Device.cuda)


def test_a_library_that_is_missing_is_named(installed, monkeypatch):
    """That one alone; SGLang would ask for mooncake."""
    installed(True)
    monkeypatch.setattr(kv_transfer, "LIBRARIES", {"libc.so.6": "libc6", "libnosuch.so.9": "libnosuch9"})
    with pytest.raises(SlimeError, match=r"needs libnosuch\.so\.9 of the system\. Run 'apt-get install libnosuch9',"):
        require_mooncake(Device.cpu)


def test_the_guide_and_the_requirements_name_the_same(pytestconfig):
    folder = pytestconfig.rootpath
    guide = (folder / "docs/install.md").read_text()
    assert PACKAGES[Device.cpu] in (folder / "requirements/cpu.txt").read_text().splitlines()
    assert f"pip install --no-deps {PACKAGES[Device.cuda]}" in guide
    assert " ".join([*LIBRARIES.values(), *OF_CUDA.values()]) in guide


def test_only_pairs_of_this_host_need_it(installed):
    def asked(*words: str) -> bool:
        return any("mooncake" in need.what for need in examine([*words]).needs)

    installed(False)
    assert asked("+model=glm4-tiny", "+cluster=local-pd")
    assert not asked("+model=glm4-tiny", "+cluster=local")
    assert not asked("+model=glm5.2", "+cluster=h100x256")
