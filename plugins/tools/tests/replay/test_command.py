"""What `slime replay` takes and refuses; that a step comes again to the bit is in tests/test_run.py."""

from pathlib import Path

import pytest

from slime.__main__ import main
from slime.checkpoints import CheckpointStore
from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.events import Samples
from slime.run_dir import RunDir
from slime.weights.other_forms import MEGATRONS
from slime_observers.samples.groups import GroupLog
from slime_tools.replay.command import in_ranges, of_run, start_of

TRAINED = ["+model=glm4-tiny", "+cluster=local2", "train.optimizer.lr=0.003", "run.seed=7", "run.name=it"]
TRAINED += ["sft.num_steps=4", "sft.lr_warmup_steps=1"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with four supervised steps, checkpoints after steps 2 and 4, and the samples of steps 3, 4 and 6."""
    with RunDir.open(tmp_path / "runs/it") as opened:
        opened.write_config(compose(TRAINED))
        store, log = CheckpointStore(opened.checkpoints, keep=2), GroupLog(opened.path, 1)
        for step in (6, 8):
            with store.saving(step, {}) as staging:
                (staging.path / MEGATRONS).write_bytes(b"weights")
        for step in (3, 4, 6):
            log(Samples(step, [], []))
    return opened.path


def test_a_replay_begins_at_the_newest_checkpoint_that_leads_to_the_step(run: Path) -> None:
    assert [start_of(run, step, 4)[0] for step in (3, 4)] == [2, 2]
    with pytest.raises(SlimeError, match=r"step 6 cannot be replayed: no checkpoint .* Steps that can: 3 to 4\."):
        start_of(run, 6, 4)  # step 5 is not recorded
    GroupLog(run, 1)(Samples(5, [], []))
    assert [start_of(run, step, 4)[0] for step in (4, 5, 6)] == [2, 4, 4]
    with pytest.raises(SlimeError, match=r"step 7 cannot be replayed: its samples are not recorded\. .*: 3 to 6\."):
        start_of(run, 7, 4)


def test_a_run_without_supervised_steps_has_its_first_weights_as_well(run: Path) -> None:
    for step in (1, 2):
        GroupLog(run, 1)(Samples(step, [], []))
    assert start_of(run, 2, 0) == (0, None)
    with pytest.raises(SlimeError, match="step 1 cannot be replayed"):
        start_of(run, 1, 4)


def test_a_run_that_kept_nothing_says_what_to_set(run: Path) -> None:
    for file in (run / "replay").iterdir():
        file.unlink()
    with pytest.raises(SlimeError, match=r"No step can\. Raise observe\.replay_mb, or save more often"):
        start_of(run, 3, 4)


def test_a_damaged_checkpoint_is_named(run: Path) -> None:
    (run / "checkpoints/step-000006" / MEGATRONS).write_bytes(b"weighty")
    with pytest.raises(SlimeError, match=r"step-000006: this checkpoint cannot be used: metadata\.json|other content"):
        start_of(run, 3, 4)


def test_ranges_of_steps() -> None:
    assert in_ranges([1, 2, 3, 5, 8, 9]) == "1 to 3, 5, 8 to 9"


def test_the_config_is_the_run_s_in_a_folder_beside_it(run: Path) -> None:
    composed, trained = of_run(run, 3, [], generates=False), compose(TRAINED)
    cfg = composed.cfg
    for section in ("model", "cluster", "algo", "sft", "rollout", "data", "reward"):
        assert getattr(cfg, section) == getattr(trained, section), section
    assert (cfg.train.megatron, cfg.train.optimizer) == (trained.train.megatron, trained.train.optimizer)
    assert Path(cfg.run.dir) / cfg.run.name == run.parent / "replays/it-3"
    assert composed.topology
    assert not composed.topology.generates


def test_it_generates_with_the_run_s_engine(run: Path) -> None:
    topology = of_run(run, 3, [], generates=True).topology
    assert topology
    assert len(topology.engines) == 1


def test_another_layout_is_a_key(run: Path) -> None:
    cfg = of_run(run, 3, ["train.megatron.tensor_model_parallel_size=2"], generates=False).cfg
    assert (cfg.train.megatron["tensor_model_parallel_size"], cfg.train.megatron["sequence_parallel"]) == (2, True)
    assert cfg.train.optimizer["lr"] == 0.003
    alone = of_run(run, 3, ["+cluster=local"], generates=False).cfg
    assert (alone.cluster.num_trainers, alone.train.optimizer["lr"], alone.run.seed) == (1, 0.003, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["it"], "slime replay: the following arguments are required: step"),
        (["it", "tre.x=1"], "'tre.x=1' is no number of a step. Name it second: slime replay RUN STEP"),
        (["none", "3"], "this is no run directory. Name a folder with the config.yaml of a run."),
        (["it", "3", "task=sums"], "task=sums: a replay takes keys and a cluster. Leave it out."),
        (["it", "3", "algo.clip_lo=1"], "Did you mean 'algo.clip_low'?"),
        (["it", "9"], "step 9 cannot be replayed: its samples are not recorded. Steps that can: 3 to 4."),
    ],
)
def test_what_cannot_be_is_one_line(run: Path, words: list[str], said: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(run.parent)
    assert main(["replay", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not (run.parent / "replays").exists()
