"""The files of examples/schedulers: the script of Slurm does what it says, and the commands of all are right."""

import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from slime.compose.compose import examine

FOLDER = Path(__file__).parents[1] / "examples/schedulers"
RUN = """#!/bin/bash
trap 'exit 75' USR2
trap 'exit 130' TERM
echo "$@" > words
for _ in {1..600}; do sleep 0.1; done
"""
SCONTROL = """#!/bin/bash
echo "$@" >> asked
if [ "$1" = show ]; then printf 'a1\\na2\\n'; fi
"""


@pytest.mark.parametrize(("signal", "code", "again"), [("USR2", 75, True), ("TERM", 130, False)])
def test_a_job_of_slurm_hands_signals_on_and_goes_on_where_it_should(
    tmp_path: Path, signal: str, code: int, again: bool
) -> None:
    for name, text in (("run", RUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "a[1-2]", "SLURM_JOB_ID": "7"}
    environment |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLIME": str(tmp_path / "run")}
    command = ["bash", FOLDER / "slime.sbatch", "+model=x", "+cluster=y"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as job:
        until = time.monotonic() + 30
        while not (tmp_path / "words").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        subprocess.run(["kill", f"-{signal}", str(job.pid)], check=True)
        assert job.wait(30) == code
    hosts = tmp_path / "hosts-7"
    assert hosts.read_text() == "a1\na2\n"
    assert (tmp_path / "words").read_text().split() == ["+model=x", "+cluster=y", f"cluster.hostfile={hosts}"]
    assert (tmp_path / "asked").read_text().splitlines() == ["show hostnames a[1-2]", *["requeue 7"] * again]


def commands() -> list[str]:
    """What the files have slime do, without their shell variables."""
    [by_hand] = re.findall("sbatch slime.sbatch (.*)", (FOLDER / "slime.sbatch").read_text())
    ray = yaml.safe_load((FOLDER / "rayjob.yaml").read_text())["spec"]["entrypoint"]
    sky = yaml.safe_load((FOLDER / "sky.yaml").read_text())["run"].replace("\\\n", " ")
    [by_sky] = re.findall(r"^slime (.*)$", sky, re.MULTILINE)
    return [by_hand, ray.partition("slime ")[2], by_sky.replace("$head", "10.0.0.1")]


@pytest.mark.parametrize("command", commands())
def test_their_commands_are_right(command: str) -> None:
    assert [str(problem) for problem in examine(shlex.split(command)).problems] == []
