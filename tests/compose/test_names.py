"""What is said of the launcher and of what contradicts it."""

from __future__ import annotations

from pathlib import Path

from slime import plugins
from slime.compose.names import launcher_problems
from slime.config.schema import ClusterConfig


def problems(**cluster: object) -> list[str]:
    cfg = ClusterConfig(name="it", **cluster)  # type: ignore[arg-type]
    return [str(problem) for problem in launcher_problems(cfg, plugins.load())]


def test_a_run_on_this_host_and_one_in_a_ray_need_no_launcher() -> None:
    assert problems() == problems(ray_address="10.0.0.1:6379") == []


def test_a_ray_that_is_there_takes_no_hosts(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("a\nb\nc\n")
    (told,) = problems(hostfile=str(hostfile), num_nodes=3, ray_address="10.0.0.1:6379")
    assert told.startswith("cluster.hostfile: cannot be set together with cluster.ray_address. Remove one")


def test_ssh_asks_for_its_hostfile() -> None:
    (told,) = problems(launcher="ssh", num_nodes=2)
    assert told.startswith("cluster.launcher: is ssh, which needs a hostfile. Set cluster.hostfile=<a file")


def test_a_launcher_that_is_not_installed_is_named_with_the_nearest() -> None:
    (told,) = problems(launcher="sssh", num_nodes=2)
    assert told == "cluster.launcher: no launcher named 'sssh' is installed. Did you mean 'ssh'?"


def test_without_the_distribution_a_hostfile_says_what_to_install(tmp_path: Path) -> None:
    (told,) = [str(problem) for problem in launcher_problems(ClusterConfig(hostfile="hosts"), plugins.discover([]))]
    assert told.startswith("cluster.hostfile: no launcher named 'ssh' is installed. Run: pip install slime-cluster.")
