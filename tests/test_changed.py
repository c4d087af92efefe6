"""Which tests `make quick` runs."""

from pathlib import Path

import pytest

from tests.changed import CHECKOUT, WHOLE, importers, module_of, own_tests, paths_for


def test_a_room_a_module_and_a_distribution_bring_their_own_tests() -> None:
    files = ["core/slime/train/packing.py", "core/slime/digest.py", "plugins/rewards/slime_rewards/math/labels.py"]
    wanted = ["plugins/rewards/tests/math", "tests/test_digest.py", "tests/test_house.py", "tests/train"]
    found = {*paths_for(files)}
    assert [file for file in wanted if found.isdisjoint({file, *map(str, Path(file).parents)})] == []
    assert [test for file in files for test in own_tests(file)] == ["tests/train", "tests/test_digest.py", wanted[0]]


@pytest.mark.parametrize(
    ("file", "wanted", "unwanted"),
    [
        ("core/slime/train/packing.py", "plugins/megatron/tests/train", "plugins/rewards/tests/math"),
        ("plugins/filters/slime_filters/ahead/gate.py", "plugins/filters/tests/ahead", "plugins/agents/tests/tools"),
        ("plugins/rewards/slime_rewards/math/answers.py", "plugins/rewards/tests/general", "plugins/sglang/tests/disk"),
        ("plugins/libraries/weight-buckets/weight_buckets/receipt.py", "plugins/sglang/tests/disk", "tests/data"),
        ("plugins/testing/slime_testing/engines.py", "tests/sampling/test_loop_sglang.py", "tests/data"),
        ("tests/running.py", "plugins/agents/tests/tools/test_task.py", "tests/data"),
    ],
)
def test_a_distribution_s_tests_run_when_what_it_uses_changes(file: str, wanted: str, unwanted: str) -> None:
    assert (CHECKOUT / file).exists()
    assert wanted in paths_for([file])
    assert unwanted not in paths_for([file])


def test_a_module_has_the_name_by_which_it_is_imported() -> None:
    assert module_of("core/slime/train/packing.py") == "slime.train.packing"
    assert module_of("plugins/sglang/slime_sglang/engine/__init__.py") == "slime_sglang.engine"
    assert module_of("plugins/models/glm4/slime_plugin_glm4/hf.py") == "slime_plugin_glm4.hf"
    assert module_of("plugins/agents/tests/endpoint/played.py") == "plugins.agents.tests.endpoint.played"
    assert module_of("conf/recipe/x.yaml") == ""
    assert {"slime.types", "slime_sglang.engine.driver.client", "tests.running"} <= importers().keys()


def test_a_changed_test_is_run_once() -> None:
    assert paths_for(["tests/train/test_bins.py"]) == ["tests/test_house.py", "tests/train/test_bins.py"]
    both = paths_for(["tests/train/test_bins.py", "core/slime/train/bins.py"])
    assert "tests/train" in both
    assert "tests/train/test_bins.py" not in both


def test_what_tests_share_brings_the_tests_of_its_room() -> None:
    assert paths_for(["tests/reward/asking.py"]) == ["tests/reward", "tests/test_house.py"]


def test_all_that_lies_outside_of_rooms_has_tests_too() -> None:
    """A path that is not there would be left out in silence."""
    assert [name for name in WHOLE.values() if not (CHECKOUT / name).exists()] == []
    assert [first for first in WHOLE if not (CHECKOUT / first).exists()] == []
    assert paths_for(["docs/index.md", "upkeep/stranger.sh"]) == [
        "tests/test_house.py",
        "tests/test_site.py",
        "tests/upkeep",
    ]


def test_every_room_has_tests() -> None:
    rooms = [path for path in (CHECKOUT / "core/slime").iterdir() if path.is_dir() and list(path.glob("*.py"))]
    without = [room.name for room in rooms if not (CHECKOUT / "tests" / room.name).is_dir()]
    assert set(without) <= {"conf"}, "a room without a folder of tests"
    assert all(Path(CHECKOUT / name).exists() for room in rooms for name in paths_for([f"core/slime/{room.name}/x.py"]))
