from pathlib import Path

from slime_testing.launchers import check_launcher


def test_contract(tmp_path: Path) -> None:
    check_launcher("beside", tmp_path, num_nodes=3)
