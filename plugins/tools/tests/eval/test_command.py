"""What `slime eval` takes and prints; that it scores a run beside its training is in tests/test_run.py."""

from pathlib import Path

import pytest

from slime.__main__ import main
from slime.checkpoints import CheckpointStore
from slime.compose.compose import compose
from slime.run_dir import RunDir
from slime.weights.other_forms import MEGATRONS
from slime_tools.eval.command import shown
from tests.site import Site

POSITION = {"sft_step": 4, "rl_step": 2}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunDir.open(tmp_path / "it") as opened:
        opened.write_config(compose(["+model=glm4-tiny", "+cluster=local"]))
        store = CheckpointStore(opened.checkpoints, keep=2)
        for step in (4, 6):
            with store.saving(step, {"position": POSITION}) as staging:
                (staging.path / MEGATRONS).write_bytes(b"weights")
    return opened.path


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["eval", *argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err.removeprefix("slime: ").strip()


def test_what_is_no_run_and_no_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused([str(tmp_path)], capsys)
    assert said.startswith(f"{tmp_path}: this is neither a run directory nor an HF folder. Name a folder with")
    assert "Name it first: slime eval runs/<name>" in refused(["+cluster=local", str(tmp_path)], capsys)


def test_a_run_without_a_checkpoint_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (run / "checkpoints").iterdir():
        folder.rename(folder.with_name(f".{folder.name}"))
    assert refused([str(run)], capsys).startswith(f"{run}: there is no checkpoint yet. Wait until it has saved one")


@pytest.mark.parametrize("words", [["--checkpoint", "5"], ["--checkpoint=5", "+cluster=local"]])
def test_the_checkpoint_that_is_not_there(run: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused([str(run), *words], capsys) == f"{run}: there is no checkpoint 5. There are 4, 6."


def test_a_damaged_checkpoint_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = run / "checkpoints/step-000006"
    (newest / MEGATRONS).write_bytes(b"weight")
    assert refused([str(run)], capsys) == (
        f"{newest}: this checkpoint cannot be used: {MEGATRONS} has 6 bytes instead of 7. "
        "Choose another checkpoint of the run."
    )


def test_options_may_stand_between_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "eval.path" in refused([str(run), "--checkpoint", "6", "eval.path=null"], capsys)
    assert not (run / "eval").exists(), "nothing is made before all is right"


def test_no_evaluation_starts_beside_a_broken_plugin(run: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("acme-broken", "import no_such_package")
    assert "plugin acme-broken 1.0: 'acme_broken' does not import" in refused([str(run)], capsys)


def test_a_result_names_weights_prompts_and_pass_at_k() -> None:
    metrics = {"eval/reward_mean": 0.25, "eval/pass_at_2": 0.5, "eval/pass_at_4": 0.75, "seconds/eval": 3.0}
    metrics |= {"eval/more/reward_mean": 0.125, "eval/more/truncated_share": 0.5}
    result = {
        "weights": "runs/it/checkpoints/step-000006",
        "position": POSITION,
        "prompts": "x.jsonl",
        "samples_per_prompt": 4,
        "sets": {"more": {"prompts": "more.jsonl", "samples_per_prompt": 1}},
        "metrics": metrics,
    }
    lines = list(shown(result, Path("runs/it/eval/step-000006")))
    assert lines[1] == ("runs/it/checkpoints/step-000006 after 4 supervised steps and 2 reinforcement-learning steps")
    assert lines[2] == "on x.jsonl, 4 samples a prompt"
    assert [line.split() for line in lines[3:6]] == [
        ["mean", "of", "4", "0.2500"],
        ["pass@2", "0.5000"],
        ["pass@4", "0.7500"],
    ]
    more = lines.index("more: on more.jsonl, 1 sample a prompt")
    assert [line.split() for line in lines[more + 1 : more + 3]] == [
        ["reward", "0.1250"],
        ["truncated", "share", "0.5000"],
    ]
    assert lines[-1] == "samples  slime samples runs/it/eval/step-000006"
