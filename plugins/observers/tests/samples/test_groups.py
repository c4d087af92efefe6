"""What a step trained on, kept for `slime replay`: it reads back to the bit, and takes no more room than it may."""

from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime.events import Samples
from slime.segments import Rows, Segment, WeightSpan
from slime.types import Group, Prompt, Sample, Status, Verdict
from slime_observers.samples import groups
from slime_observers.samples.groups import GroupLog, path_of, read_groups, recorded_steps
from slime_testing.plugins import check_subscriber


def group(number: int, count: int = 3) -> Group:
    """One sample with a part that its program wrote, and rows that an engine recorded."""
    prompt = Prompt(f"0/{number}", ({"role": "user", "content": "3 + 5"},), (1, 2), label=8, metadata={"level": 2})
    spans = [WeightSpan(3, count, is_mixed=True), WeightSpan(None, 1)]
    segment = Segment(prompt.tokens, [*range(count), 9], [-1 / 3] * count + [0.0], [1] * count + [0], spans)
    segment.recorded["experts"] = Rows("uint8", (2, 2), b"\x00\x01\x02\x03")
    return Group(prompt, [Sample(prompt, 0, [segment], Status.COMPLETED, "8", Verdict.of(1.0, exact=1.0), shaping=0.5)])


def test_it_takes_the_events_of_a_run(tmp_path: Path) -> None:
    check_subscriber("groups", tmp_path)


def test_what_a_step_trained_on_reads_back_to_the_bit(tmp_path: Path) -> None:
    log, both = GroupLog(tmp_path, 1), [group(2), group(1, 40)]
    log(Samples(7, both, []))
    assert read_groups(tmp_path, 7) == both
    log(Samples(7, both[:1], []))
    assert read_groups(tmp_path, 7) == both[:1], "of a step that ran again"


def test_the_newest_steps_stay(tmp_path: Path) -> None:
    GroupLog(tmp_path, 1)(Samples(1, [group(1)], []))
    size = path_of(tmp_path, 1).stat().st_size
    log = GroupLog(tmp_path, 3.5 * size / 10**6)
    for step in range(2, 8):
        log(Samples(step, [group(step)], []))
    assert recorded_steps(tmp_path) == [5, 6, 7]


def test_a_folder_of_small_files_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_FILES", 3)
    log = GroupLog(tmp_path, 1)
    for step in range(1, 6):
        log(Samples(step, [group(1)], []))
    GroupLog(tmp_path, 1)(Samples(6, [group(1)], []))
    assert recorded_steps(tmp_path) == [4, 5, 6], "a run that continues counts what is there"


def test_a_step_that_is_too_large_is_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = GroupLog(tmp_path, 0.001)
    for step, count in ((1, 3), (2, 300), (3, 300), (4, 3)):
        log(Samples(step, [group(1, count)], []))
    assert recorded_steps(tmp_path) == [1, 4]
    assert [record.message for record in caplog.records] == [
        "step 2 is not kept for `slime replay`: about 0 MB, more than observe.replay_mb"
    ]


def test_0_keeps_none(tmp_path: Path) -> None:
    GroupLog(tmp_path, 0)(Samples(1, [group(1)], []))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("cut", [0, 20, -1])
def test_a_damaged_file_is_named(tmp_path: Path, cut: int) -> None:
    GroupLog(tmp_path, 1)(Samples(1, [group(1)], []))
    path = path_of(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(SlimeError, match=r"step-000001.json.gz: it is not what a run wrote"):
        read_groups(tmp_path, 1)
