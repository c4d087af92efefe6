"""The misbehaving reward as an installed distribution: a module and its metadata on the import path."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from slime import plugins
from slime.reward.service import RewardService
from tests.reward import misbehaving
from tests.reward.asking import IMPATIENT_S, rewards


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`reward-zoo 1.2` is found by this process and by every worker it starts (workers take over `sys.path`).

    Only while a module's tests run: transcripts that list all rewards run in the same process.
    """
    site = tmp_path_factory.mktemp("site")
    misbehaving.install(site)
    sys.path.insert(0, str(site))
    plugins.load.cache_clear()
    yield
    sys.path.remove(str(site))
    plugins.load.cache_clear()


@pytest.fixture(scope="module")
def service(installed: None) -> Iterator[RewardService]:
    with rewards() as service:
        yield service


@pytest.fixture
def impatient(installed: None) -> Iterator[RewardService]:
    with rewards(timeout_s=IMPATIENT_S) as service:
        yield service
