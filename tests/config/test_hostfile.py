"""Which hosts a file names, and what is said of a file that names them wrongly."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slime.config.hostfile import hostfile_problems, read_hostfile
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


def test_addresses_come_in_the_order_of_their_lines(file: Path) -> None:
    file.write_text("# the rack\nnode-2\n\n  10.0.0.1  # beside it\nuser@node-1\n")
    assert read_hostfile(str(file)) == ["node-2", "10.0.0.1", "user@node-1"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "hosts: names no host. Write an address a line"),
        ("# none\n\n", "hosts: names no host. Write an address a line"),
        ("a\nb\na # again\n", "hosts, line 3: 'a' is on line 1 already. Name each host once"),
        ("a\nb slots=8\n", "hosts, line 2: 'b slots=8' is not an address. Write 'b' alone."),
        ("-oProxyCommand=sh\n", "hosts, line 1: '-oProxyCommand=sh' is not an address."),
        (
            "a\nlocalhost\n",
            f"hosts, line 2: the others cannot reach this host as 'localhost'. Write '{socket.gethostname()}'.",
        ),
    ],
)
def test_a_wrong_line_is_told_with_its_number(file: Path, text: str, told: str) -> None:
    file.write_text(text)
    with pytest.raises(SlimeError) as raised:
        read_hostfile(str(file))
    assert told in str(raised.value)


def test_one_host_may_be_localhost(file: Path) -> None:
    file.write_text("localhost\n")
    assert read_hostfile(str(file)) == ["localhost"]


def problems(file: Path, **cluster: object) -> list[str]:
    return [str(problem) for problem in hostfile_problems(ClusterConfig(name="it", hostfile=str(file), **cluster))]  # type: ignore[arg-type]


def test_the_file_and_the_other_keys_must_agree(file: Path) -> None:
    file.write_text("a\nb\nc\n")
    assert problems(file, num_nodes=3) == []
    assert problems(file, num_nodes=2) == [
        f"cluster.hostfile: {file} names 3 host(s), cluster.num_nodes is 2. "
        "Set cluster.num_nodes=3, or name 2 in the file."
    ]
    (told,) = problems(file, num_nodes=3, ray_address="10.0.0.1:6379")
    assert told.startswith("cluster.hostfile: is set, and cluster.ray_address too. Remove one of them")


def test_a_missing_file_is_told_with_the_nearest(file: Path) -> None:
    file.with_name("hostfile").write_text("a\n")
    (told,) = problems(file.with_name("hostfle"))
    assert told == f"cluster.hostfile: there is no '{file.with_name('hostfle')}'. Did you mean 'hostfile'?"
