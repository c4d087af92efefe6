"""The config of an evaluation: what the run says, where it runs, and everything of training left out."""

import shutil
from pathlib import Path

import pytest

from slime.compose.compose import compose
from slime.config.paths import resolve
from slime.config.schema import Init
from slime.errors import SlimeError
from slime.run_dir import RunDir
from slime.weights.other_forms import MEGATRONS
from slime_tools.eval.command import of_folder, of_run
from tests.headers import write_headers

TRAINED = ["+model=glm4-moe-tiny", "+cluster=local2", "algo.kl_coef=0.1", "filter=dynamic-sampling", "run.seed=7"]

SCORED = ["eval.samples_per_prompt=4", "eval.sampling.temperature=0.5"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with its config and a checkpoint of which there is what `check` looks for."""
    with RunDir.open(tmp_path / "runs/it") as opened:
        opened.write_config(compose([*TRAINED, "run.name=it", "data.label_key=label", *SCORED]))
        checkpoint = opened.checkpoints / "step-000006"
        checkpoint.mkdir()
        (checkpoint / MEGATRONS).touch()
    return opened.path


def evaluation(run: Path, *words: str):
    return of_run(run / "config.yaml", words, run / "eval/step-000006", run / "checkpoints/step-000006").cfg


def test_a_run_says_how_it_is_evaluated(run: Path) -> None:
    trained, cfg = compose([*TRAINED, "run.name=it", *SCORED]), evaluation(run)
    for section in ("cluster", "eval", "reward", "weights"):
        assert getattr(cfg, section) == getattr(trained, section), section
    assert (cfg.train.megatron, cfg.rollout.engines) == (trained.train.megatron, trained.rollout.engines)
    assert cfg.run.seed == 7
    assert (cfg.run.dir, cfg.run.name) == (str(run / "eval"), "step-000006")
    assert (cfg.model.weights, cfg.model.init) == (str(run / "checkpoints/step-000006"), Init.checkpoint)


def test_nothing_of_training_is_left(run: Path) -> None:
    cfg = evaluation(run)
    assert cfg.data.path == cfg.eval.path
    assert cfg.algo.kl_coef is None, "no reference model"
    assert cfg.filter.name == "none"
    assert (cfg.sft.path, cfg.sft.num_steps, cfg.train.checkpoint.interval) == (None, 0, None)


def test_a_supervised_run_is_evaluated_too(run: Path) -> None:
    supervised = ["algo=sft", "reward=arithmetic", "eval.path=pkg://slime_rewards.math/data/arithmetic-heldout.jsonl"]
    (run / "config.yaml").unlink()
    with RunDir.open(run) as opened:
        opened.write_config(compose(["+model=glm4-tiny", "+cluster=local", *supervised]))
    assert evaluation(run).reward.name == "arithmetic"


def test_another_cluster_brings_its_own_layout(run: Path) -> None:
    trained, cfg = compose(["+model=glm4-moe-tiny", "+cluster=local"]), evaluation(run, "+cluster=local")
    assert evaluation(run).train.megatron.get("expert_model_parallel_size", 1) == 2
    assert (cfg.cluster, cfg.train.megatron) == (trained.cluster, trained.train.megatron)
    assert (cfg.rollout.sglang, cfg.rollout.engines) == (trained.rollout.sglang, trained.rollout.engines)
    assert cfg.rollout.max_prompt_tokens == 32


def test_another_cluster_starts_the_same_judge(run: Path, tmp_path: Path) -> None:
    judge = resolve("pkg://slime_plugin_llama/assets/llama-tiny")
    shutil.copytree(judge, tmp_path / "judge")
    write_headers(tmp_path / "judge")
    own = ["reward=judge", "reward.options.engines=judge", f"rollout.engines.judge.model={tmp_path / 'judge'}"]
    (run / "config.yaml").unlink()
    with RunDir.open(run) as opened:
        opened.write_config(compose([*TRAINED, *own, "+rollout.engines.judge.sglang.context_length=64"]))
    for words, fields in (((), {"context_length": 64}), (("+cluster=local",), {})):
        engines = evaluation(run, *words).rollout.engines
        assert sorted(engines) == ["default", "judge"]
        assert (engines["judge"].model, engines["judge"].sglang) == (str(tmp_path / "judge"), fields)


def test_the_command_line_wins(run: Path) -> None:
    assert evaluation(run, "eval.samples_per_prompt=2").eval.samples_per_prompt == 2
    assert evaluation(run, "run.name=other").run.name == "other"
    assert evaluation(run, "reward=math").reward.options == compose([*TRAINED, "reward=math"]).reward.options


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+model=glm4-tiny"], "model=glm4-tiny: the model is that of the run. Leave it out."),
        (["eval.path=null"], "eval.path: there is no held-out prompt set. Set eval.path=<jsonl or parquet>."),
        (["eval.sample_per_prompt=2"], "Did you mean 'eval.samples_per_prompt'?"),
        (["+cluster=lokal"], "there is no cluster=lokal. Did you mean 'cluster=local'?"),
    ],
)
def test_what_cannot_be_is_refused_by_name(run: Path, words: list[str], said: str) -> None:
    with pytest.raises(SlimeError) as caught:
        evaluation(run, *words)
    assert said in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "run: 3", "run: {", "a: b: c", "\x00"])
def test_a_damaged_config_is_one_line(run: Path, text: str) -> None:
    (run / "config.yaml").write_text(text)
    with pytest.raises(SlimeError, match=r"config\.yaml: this is not the config of a run"):
        evaluation(run)


def test_a_key_of_another_slime_is_named(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("logprob_alarm", "logprob_alert"))
    with pytest.raises(SlimeError, match=r"observe\.logprob_alert"):
        evaluation(run)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An HF folder with the names and types of its weights: their values are read when the run starts."""
    path = tmp_path / "my model"
    path.mkdir()
    for file in resolve("pkg://slime_plugin_glm4/assets/glm4-tiny").iterdir():
        (path / file.name).symlink_to(file)
    write_headers(path)
    return path


@pytest.mark.parametrize("words", [["+task=arithmetic"], ["+model=glm4-tiny"]])
def test_an_hf_folder_needs_no_run(folder: Path, words: list[str]) -> None:
    cfg = of_folder(folder, ["+cluster=local", *words], folder.parent / "home").cfg
    assert (cfg.model.path, cfg.model.family, cfg.model.init) == (str(folder), "glm4", Init.checkpoint)
    assert (cfg.reward.name, cfg.data.path) == ("arithmetic", cfg.eval.path)
    assert cfg.run.name == "home"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no cluster is chosen. Choose one: +cluster="),
        (["+cluster=local"], "what to score the model on is not chosen. Choose one: +task=arithmetic, "),
        (["+cluster=local", "+reward=arithmetic"], "eval.path: there is no held-out prompt set."),
    ],
)
def test_an_hf_folder_says_what_is_missing(folder: Path, words: list[str], said: str) -> None:
    with pytest.raises(SlimeError) as caught:
        of_folder(folder, words, folder.parent / "home")
    assert str(caught.value).startswith(said)
