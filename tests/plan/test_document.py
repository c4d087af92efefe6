"""The plan for programs: its fields, and that the five recipes stand where their users have them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slime.__main__ import main
from slime.config.compose import examine
from slime.plan.document import SCHEMA, document
from slime.plugins import load

DOCS = Path(__file__).parents[2] / "docs/plan.md"


def planned(model: str, cluster: str, *words: str) -> dict[str, Any]:
    found = document(examine([f"+model={model}", f"+cluster={cluster}", *words]), load())
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def test_every_field_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)
    assert documented == list(planned("glm4-tiny", "local"))


def test_a_config_with_problems_has_no_plan() -> None:
    found = planned("glm4-tiny", "local", "cluster.num_trainers=2")
    assert list(found) == ["schema", "problems"]
    assert found["schema"] == SCHEMA
    assert found["problems"][0]["what"] == "the run needs 2 (one for each trainer rank)"


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "+model=glm4-tiny", "+cluster=local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == planned("glm4-tiny", "local")


@pytest.mark.parametrize(
    ("model", "cluster", "hosts"),
    [
        (
            "glm5.2",
            "h100x256",
            {"prefill-0": (0, 8), "decode-0": (8, 16), "decode-1": (16, 24), "decode-2": (24, 32)},
        ),
        ("deepseek-r1", "h100x128", {"default-0": (0, 8), "default-1": (8, 16)}),
        ("glm4.5", "h100x64", {"default-0": (0, 4), "default-1": (4, 8)}),
        ("glm4.7-flash", "h100x8", {"default-0": (0, 1)}),
        ("glm4-9b", "h100x8", {f"default-{number}": (0, 1) for number in range(4)}),
    ],
)
def test_places_of_the_five(model: str, cluster: str, hosts: dict[str, tuple[int, int]]) -> None:
    """Every device has one trainer rank and one rank of an engine, which takes its weights from those beside it."""
    found = planned(model, cluster)
    assert {e["name"]: (e["nodes"][0]["host"], e["nodes"][-1]["host"] + 1) for e in found["engines"]} == hosts
    trainers = {(rank["host"], rank["device"]): rank["rank"] for rank in found["trainers"]}
    assert len(trainers) == int(cluster.removeprefix("h100x"))
    taken = []
    for engine in found["engines"]:
        devices = [(node["host"], device) for node in engine["nodes"] for device in range(*node["devices"])]
        assert [trainers[device] for device in devices] == list(range(*engine["publishers"]))
        assert len(devices) == engine["fields"]["tp_size"]
        taken += devices
    assert sorted(taken) == sorted(trainers)


def test_several_hosts_need_ray() -> None:
    found = planned("deepseek-r1", "h100x128")
    assert any(need["where"] == "cluster.hostfile" for need in found["needs"])
    assert [step["host"] for step in found["commands"]] == ["host 0", "hosts 1-15", "hosts 1-15", "host 0"]
    joined = planned("deepseek-r1", "h100x128", "cluster.ray_address=10.0.0.1:6379")
    assert joined["commands"] == []
    assert not any(need["where"] == "cluster.hostfile" for need in joined["needs"])
