"""What is compared on a GPU can be set up without one."""

from __future__ import annotations

from pathlib import Path

from slime.config.schema import Device
from slime.topology.topology import read_topology
from tests.on_gpu import narrowed, setup

FLASH = Path(__file__).parents[1] / "plugins/models/glm4/slime_plugin_glm4/assets/GLM-4.7-Flash/config.json"


def test_an_engine_gets_a_device_beside_the_trainer(tmp_path: Path) -> None:
    cfg = setup(narrowed(FLASH, tmp_path / "config"), tmp_path, Device.cuda, {})
    assert read_topology(cfg).groups[0].devices == 1
