"""Which tests `make quick` runs."""

from pathlib import Path

from tests.changed import CHECKOUT, WHOLE, paths_for


def test_a_room_a_module_and_a_distribution_bring_their_own_tests() -> None:
    files = ["core/slime/train/packing.py", "core/slime/digest.py", "plugins/rewards/slime_rewards/math/labels.py"]
    wanted = ["plugins/rewards/tests/math", "tests/test_digest.py", "tests/test_house.py", "tests/train"]
    assert paths_for(files) == wanted


def test_a_changed_test_is_run_once() -> None:
    assert paths_for(["tests/train/test_packing.py"]) == ["tests/test_house.py", "tests/train/test_packing.py"]
    assert paths_for(["tests/train/test_packing.py", "core/slime/train/bins.py"]) == [
        "tests/test_house.py",
        "tests/train",
    ]


def test_what_tests_share_brings_the_tests_of_its_room() -> None:
    assert paths_for(["tests/reward/asking.py"]) == ["tests/reward", "tests/test_house.py"]


def test_all_that_lies_outside_of_rooms_has_tests_too() -> None:
    """A path that is not there would be left out in silence."""
    assert [name for name in WHOLE.values() if not (CHECKOUT / name).exists()] == []
    assert [first for first in WHOLE if not (CHECKOUT / first).exists()] == []
    assert paths_for(["docs/index.md", "upkeep/docs.py"]) == [
        "tests/test_house.py",
        "tests/test_site.py",
        "tests/upkeep",
    ]


def test_every_room_has_tests() -> None:
    rooms = [path for path in (CHECKOUT / "core/slime").iterdir() if path.is_dir() and list(path.glob("*.py"))]
    without = [room.name for room in rooms if not (CHECKOUT / "tests" / room.name).is_dir()]
    assert set(without) <= {"conf"}, "a room without a folder of tests"
    assert all(Path(CHECKOUT / name).exists() for room in rooms for name in paths_for([f"core/slime/{room.name}/x.py"]))
