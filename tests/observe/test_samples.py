"""The samples of a run: what is written of a step, how much of a big one, and that it reads back."""

import json

import pytest

from slime.errors import SlimeError
from slime.observe.samples import SampleLog, read_samples
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict, WeightSpan


def group(number: int, *verdicts: Verdict, response: str = "8") -> Group:
    prompt = Prompt(f"0/{number}", ({"role": "user", "content": "3 + 5"},), (1, 2), label=8)
    return Group(
        prompt,
        [
            Sample(prompt, index, [7, 9], [-0.5, -0.1], [1, 1], [WeightSpan(3, 2)], Status.COMPLETED, response, verdict)
            for index, verdict in enumerate(verdicts)
        ],
    )


def test_every_sample_of_a_small_step_is_kept(tmp_path) -> None:
    good, bad = group(1, Verdict.of(1.0, digits=0.5), Verdict.timeout("10 s")), group(2, Verdict.of(0.0))
    SampleLog(tmp_path, 1).step(12, [(bad, Decision(False, "all_wrong")), (good, Decision(True))])
    first, second, third = read_samples(tmp_path / "step-000012.jsonl")
    assert first == {
        "prompt": "0/1",
        "sample": 0,
        "reward": 1.0,
        "verdict": "value",
        "reason": "",
        "parts": {"digits": 0.5},
        "filter": "kept",
        "finish": "completed",
        "num_tokens": 2,
        "weight_versions": [[3, 2]],
        "label": 8,
        "messages": [{"role": "user", "content": "3 + 5"}],
        "response": "8",
    }
    assert (second["reward"], second["verdict"], second["reason"]) == (None, "timeout", "10 s")
    assert (third["prompt"], third["filter"]) == ("0/2", "all_wrong")


def test_a_big_step_keeps_whole_groups_spread_over_all(tmp_path) -> None:
    groups = [group(number, Verdict.of(1.0), Verdict.of(0.0), response="x" * 1000) for number in range(100, 200)]
    SampleLog(tmp_path, 0.05).evaluation(4, groups)
    path = tmp_path / "eval-000004.jsonl"
    assert 0.9 * 50_000 < path.stat().st_size <= 50_000
    rows = read_samples(path)
    kept = [int(row["prompt"].removeprefix("0/")) for row in rows[::2]]
    assert [row["sample"] for row in rows] == [0, 1] * len(kept)
    assert min(kept) < 110
    assert max(kept) > 190
    assert "filter" not in rows[0]


def test_one_group_is_kept_even_if_it_is_too_large_and_none_if_none_is_wanted(tmp_path) -> None:
    long = [(group(number, Verdict.of(1.0), response="x" * (1000 - number)), Decision(True)) for number in (1, 2)]
    SampleLog(tmp_path, 1e-6).step(1, long)
    (row,) = read_samples(tmp_path / "step-000001.jsonl")
    assert row["prompt"] == "0/2"
    SampleLog(tmp_path, 0).step(2, long)
    assert not (tmp_path / "step-000002.jsonl").exists()


def test_a_line_that_is_no_sample_is_named(tmp_path) -> None:
    path = tmp_path / "step-000001.jsonl"
    path.write_text(json.dumps({"prompt": "0/1", "response": "", "reward": None}) + "\n[]\n")
    with pytest.raises(SlimeError, match=r"step-000001\.jsonl:2: this line is not a sample"):
        read_samples(path)


def test_trackers_get_what_is_kept_once(tmp_path) -> None:
    log = SampleLog(tmp_path, 0.002)
    groups = [group(number, Verdict.of(1.0), response="x" * 700) for number in (1, 2, 3)]
    log.evaluation(0, groups)
    log.step(1, [(each, Decision(True)) for each in groups])
    newest = log.newest()
    assert {name: len(rows) for name, rows in newest.items()} == {"rollout/samples": 2, "eval/samples": 2}
    assert newest["rollout/samples"] == read_samples(tmp_path / "step-000001.jsonl")
    assert log.newest() == {}
