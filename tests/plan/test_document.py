"""The plan for programs: its fields, and that the five recipes stand where their users have them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slime.__main__ import main
from slime.compose.compose import examine
from slime.plan.document import SCHEMA, document
from slime.plan.report import report
from slime.plugins import load

DOCS = Path(__file__).parents[2] / "docs/plan.md"


def planned(model: str, cluster: str, *words: str) -> dict[str, Any]:
    found = document(examine([f"+model={model}", f"+cluster={cluster}", *words]), load())
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def test_every_field_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)
    assert documented == list(planned("glm4-tiny", "local"))


def sections(text: str) -> dict[str, list[str]]:
    """Title -> lines of the plan's text; the first section has no title."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return {"": blocks[0], **{lines[0]: lines[1:] for lines in blocks[1:]}}


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(
    "words",
    [
        ("+model=glm5.2", "+cluster=h100x256"),
        ("+model=deepseek-r1", "+cluster=h100x128"),
        ("+model=glm4-9b", "+cluster=h100x8-split", "rollout.over_sampling=2", "filter=dynamic-sampling"),
        ("+model=glm4-tiny", "+cluster=local"),
        ("+model=glm4-tiny", "+cluster=local", "algo=sft"),
    ],
    ids=" ".join,
)
def test_text_and_document_say_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    if "algo=sft" in words:
        demonstrations = tmp_path / "rows.jsonl"
        demonstrations.write_text(
            '{"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}\n'
        )
        words += (f"sft.path={demonstrations}", "sft.num_steps=300")
    composed = examine(words)
    assert composed.problems == []
    told, text = document(composed, load()), sections(report(composed, load()))
    rows = dict(re.split(r"  *", line, maxsplit=1) for line in text[""])
    assert rows == told["summary"]
    settings = dict(re.split(r"  *", line.strip(), maxsplit=1) for line in text["learning"])
    assert {key: parsed(value) for key, value in settings.items()} == told["learning"]
    batches = " ".join(text["batches"])
    assert [size for size in told["batch"].values() if f"{size:,}" not in batches] == []
    for line, (name, sizes) in zip(text.get("requests of an engine", []), told["requests"].items(), strict=True):
        assert line.strip().startswith(f"{name}: ")
        assert [size for size in sizes.values() if size is not None and f"{size:,}" not in line] == []
    for line, stage in zip(text["pipeline stages"][1:], told["stages"], strict=True):
        first, behind = stage["ranks"]
        assert f"{first}-{behind - 1} " in line or (behind == first + 1 and f"  {first} " in line)
        assert all(f"{first}-{behind - 1}" in line for first, behind in stage["layers"])
        size = 1e9 if stage["parameters"] >= 1e9 else 1e6
        assert f"{stage['parameters'] / size:.2f} " in line
    published = " ".join(text.get("a published version", []))
    seconds = told["publish_seconds"] or {}
    assert all(f"{name if name != 'total' else 'about'}" in published for name in seconds)
    assert ("by estimate" in published) == bool(seconds)


def test_what_decides_is_there() -> None:
    """By hand, of two of the users' recipes."""
    found = planned("glm5.2", "h100x256")
    assert [stage["layers"] for stage in found["stages"]] == [
        [[0, 14]],
        *([[first, first + 8]] for first in range(14, 62, 8)),
        [[62, 78]],
    ]
    assert [stage["ranks"] for stage in found["stages"]] == [[32 * stage, 32 * stage + 32] for stage in range(8)]
    assert sum(stage["parameters"] for stage in found["stages"]) == pytest.approx(753.3e9, rel=1e-3)
    assert (found["batch"]["tokens_a_group"], found["batch"]["tokens_a_rank"]) == (65536, 8192)
    expected = {"train.optimizer.lr": 1e-6, "rollout.prompts_per_step": 8, "reward.name": "deepscaler"}
    assert found["learning"].items() >= expected.items()
    in_flight = planned("deepseek-r1", "h100x128")["requests"]
    assert in_flight == {"default": {"in_flight": 1024, "a_data_parallel_rank": 128, "running": 1040, "in_graphs": 130}}


def test_a_config_with_problems_has_no_plan() -> None:
    found = planned("glm4-tiny", "local", "cluster.num_trainers=2")
    assert list(found) == ["schema", "warnings", "problems"]
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


def test_a_choice_among_a_rewards_options_is_shown_by_its_name() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "reward=math", "reward.options.answer=boxed"]
    found = document(examine(words), load())
    assert json.loads(json.dumps(found))["learning"]["reward.options"]["answer"] == "boxed"
    assert '{"answer": "boxed"' in report(examine(words), load())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        # The two that were measured (benchmarks/results/train-h200.md): 10,240 of 24,576 tokens, 12,800 of 16,384.
        ((2048, 1024), "in steps where they leave 80% of the tokens or less; 42%"),
        ((2048, 1024, "train.share_prompts=true"), "leave 42% of the tokens"),
        ((2048, 1024, "train.share_prompts=false"), None),
        ((2048, 1024, "rollout.samples_per_prompt=1", "algo=reinforce_pp"), None),
        ((2048, 1024, "train.megatron.context_parallel_size=2"), None),
        ((512, 1536), "in steps where they leave 80% of the tokens or less; 78%"),
        ((100, 8192, "train.share_prompts=true"), "leave 99% of the tokens"),
    ],
)
def test_the_plan_says_what_shared_prompts_leave(words: tuple[Any, ...], line: str | None) -> None:
    prompt, response, *others = words
    sizes = [f"rollout.max_prompt_tokens={prompt}", f"rollout.sampling.max_response_tokens={response}"]
    sizes += ["rollout.sampling.max_sequence_tokens=null", "rollout.samples_per_prompt=8"]
    sizes += ["train.megatron.context_parallel_size=1", *others]
    text = report(examine(["+model=glm4-9b", "+cluster=h100x8", *sizes]), load())
    found = [each.split(maxsplit=2)[2] for each in text.splitlines() if each.startswith("  shared prompts")]
    assert found == ([] if line is None else [f"{line} where samples are as long as they may be"])
