"""Which hosts a file names, and what is said of a file that names them wrongly."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime_cluster.ssh.hostfile import hostfile_problems, read_hostfile
from slime_cluster.ssh.launcher import SshLauncher


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
        ("a\nb port=22\n", "hosts, line 2: 'b port=22' is not an address. Write 'b' alone, or 'b slots=8'."),
        ("a slots=8 max_slots=8\n", "hosts, line 1: 'a slots=8 max_slots=8' is not an address."),
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


def test_lines_of_other_launchers_are_taken_and_their_slots_compared(file: Path) -> None:
    file.write_text("10.0.0.1 slot=8\n10.0.0.2 slots=8\n10.0.0.3\n")
    assert read_hostfile(str(file), 8) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    with pytest.raises(SlimeError) as raised:
        read_hostfile(str(file), 4)
    assert "hosts, line 1: 'slot=8', but cluster.devices_per_node is 4. Make them equal" in str(raised.value)


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
        "Name 2 in the file, or choose a cluster of 3, or set cluster.spares=1."
    ]
    file.write_text("a slots=8\nb\nc\n")
    assert "'slots=8', but cluster.devices_per_node is 1" in problems(file, num_nodes=3, devices_per_node=1)[0]


def test_spare_hosts_are_in_the_file_too(file: Path) -> None:
    file.write_text("a\nb\nc\n")
    assert problems(file, num_nodes=2, spares=1) == []
    assert problems(file, num_nodes=3, spares=1) == [
        f"cluster.hostfile: {file} names 3 host(s), cluster.num_nodes is 3 and cluster.spares 1. "
        "Name 4 in the file, or choose a cluster of 3, or set cluster.spares=0."
    ]


def test_excluded_hosts_stay_in_the_file(file: Path) -> None:
    file.write_text("node-a\nnode-b\nnode-c\n")
    cluster = ClusterConfig(name="it", hostfile=str(file), num_nodes=2, exclude=["node-b"])
    assert list(hostfile_problems(cluster)) == []
    assert SshLauncher().hosts(cluster) == ["node-a", "node-c"]
    (told,) = problems(file, num_nodes=3, exclude=["node-b"])
    assert "names 2 host(s) besides 1 excluded, cluster.num_nodes is 3. Name 3 in the file" in told


def test_an_excluded_host_that_is_not_there_is_told_with_the_nearest(file: Path) -> None:
    file.write_text("alpha\nbeta\n")
    (told,) = problems(file, num_nodes=2, exclude=["alpa"])
    assert told == f"cluster.exclude: 'alpa' is no host of {file}. Did you mean 'alpha'?"


def test_a_missing_file_is_told_with_the_nearest(file: Path) -> None:
    file.with_name("hostfile").write_text("a\n")
    (told,) = problems(file.with_name("hostfle"))
    assert told == f"cluster.hostfile: there is no '{file.with_name('hostfle')}'. Did you mean 'hostfile'?"
