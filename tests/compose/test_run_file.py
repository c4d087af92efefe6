"""Run files: choices and keys in YAML, over recipe and model, below what stands later."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime import command
from slime.compose.compose import Composed, examine
from slime.compose.run_file import read_run_file
from slime.errors import SlimeError
from slime.run_config import container, flat

OWN = """\
# a comment
model: glm4-tiny
+cluster: local
run:
  seed: 7
  num_steps: 3
train.optimizer.lr: 1e-3  # dotted, and a float to YAML 1.2 alone
train:
  megatron: {add_bias_linear: false}
rollout:
  sampling:
    temperature: 0.9
    stop: [END, STOP]
  prompts_per_step: ${run.seed}
eval:
  path: null
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(OWN)
    return tmp_path


def values(*argv: str) -> dict[str, object]:
    composed = examine(argv)
    assert composed.problems == []
    return flat(container(composed.cfg))


def test_a_file_is_the_words_that_it_stands_for() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "run.seed=7", "run.num_steps=3", "train.optimizer.lr=1e-3"]
    words += ["train.megatron.add_bias_linear=false", "rollout.sampling.temperature=0.9", "eval.path=null"]
    words += ["rollout.sampling.stop=[END,STOP]", "rollout.prompts_per_step=7"]
    by_file, by_words = values("my.yaml"), values(*words)
    assert by_file["run.name"] == "glm4-tiny-local-my"
    named = ("run.name", "weights.path")
    assert {**by_words, **{key: by_file[key] for key in named}} == by_file
    assert by_words["run.name"] != by_file["run.name"]


def test_what_stands_later_wins(here: Path) -> None:
    (here / "more.yml").write_text("rollout.sampling: {temperature: 0.8}\nmodel: qwen3-tiny\n")
    found = values("rollout.sampling.temperature=0.5", "run.seed=1", "my.yaml", "more.yml", "run.num_steps=4")
    assert found["rollout.sampling.temperature"] == 0.8
    assert (found["run.seed"], found["run.num_steps"], found["model.name"]) == (7, 4, "qwen3-tiny")
    assert found["run.name"] == "qwen3-tiny-local-my-more"
    assert values("my.yaml", "rollout.prompts_per_step=8")["run.name"] == "glm4-tiny-local-my-prompts_per_step_8"
    assert values("more.yml", "my.yaml")["model.name"] == "glm4-tiny"


def test_a_key_that_the_cluster_sets_is_taken_out(here: Path) -> None:
    assert "rollout.sglang.grammar_backend" in values("my.yaml")
    (here / "less.yaml").write_text("~rollout.sglang.grammar_backend:\n")
    assert "rollout.sglang.grammar_backend" not in values("my.yaml", "less.yaml")


def test_a_word_of_a_section_and_a_file_of_it_are_one(here: Path) -> None:
    (here / "sets.yaml").write_text(
        "data:\n  sets:\n    b:\n      path: pkg://slime_rewards.math/data/arithmetic-heldout.jsonl\n      share: 2\n"
    )
    found = values("my.yaml", "sets.yaml", "data.sets.b.share=3", "reward=math")
    assert (found["data.sets.b.share"], found["reward.name"]) == (3.0, "math")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("run:\n  sed: 1\n", "my.yaml, line 2: there is no key 'run.sed'. Did you mean 'run.seed'?"),
        ("\nmodel: glm4-tin\n", "my.yaml, line 2: there is no model=glm4-tin. Did you mean 'model=glm4-tiny'?"),
        ("run.seed: one\n", "my.yaml, line 1: run.seed: must be int, got 'one'. It is: Seed of everything"),
        ("data:\n  shuffle: 3\n", "my.yaml, line 2, data.shuffle: must be bool, got '3'. It is: New random order"),
        (
            "data:\n  sets:\n    a:\n      shar: 2\n",
            "my.yaml, line 4: there is no key 'data.sets.a.shar'",
        ),
        ("eval:\n", "my.yaml, line 1: 'eval' is a section, not a key. Set one of its keys, for instance eval.path."),
        ("run.seed: 1\nrun:\n  seed: 2\n", "my.yaml, line 3: run.seed stands here and in my.yaml, line 1. Keep one"),
        ("run: {seed: 1}\nrun: {seed: 2}\n", "my.yaml, line 2: is not YAML: found duplicate key run. Correct that"),
        ("run: {seed: 1\n", "my.yaml, line 2: is not YAML: "),
        ("a: [\tb\n", "my.yaml, line 1: is not YAML: "),
        ("- run.seed=1\n", "my.yaml: is no run file: it has no keys. Write lines such as 'cluster: "),
        ("run.seed=1\n", "my.yaml, line 1: there is no key 'run.seed=1'. Did you mean 'run.seed'?"),
        ("run.dir: ${nothing}\n", "my.yaml, line 1: run.dir: Interpolation key 'nothing' not found"),
        ("run: &a\n  dir: *a\n", "my.yaml: is no run file"),
        ("defaults:\n  - task: gsm8k\n", "my.yaml, line 1: 'defaults' is Hydra's own. Write each choice as a line"),
        ("hydra:\n  run: 1\n", "my.yaml, line 1: 'hydra' is Hydra's own"),
        ("algo.clip_low: 3\nrollout.prompts_per_step: 0\n", "my.yaml, line 2, rollout.prompts_per_step: must be at"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    (here / "my.yaml").write_text(text)
    assert command.main(["plan", "+model=glm4-tiny", "+cluster=local", "my.yaml"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith(f"slime: {error}") for line in said), said
    (here / "my.yaml").write_text("")  # which sets nothing
    assert command.main(["plan", "+model=glm4-tiny", "+cluster=local", "my.yaml"]) == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["m.yaml"], "there is no 'm.yaml'. Did you mean 'my.yaml'?"),
        (["no/m.yaml"], "no is missing: there is no 'no/m.yaml'"),
        (["@my.yaml"], "'@my.yaml' is not how a run file is given. It is a word of its own: my.yaml."),
        (["--config", "my.yaml"], "there is no flag '--config' here. A run file is a word of its own: slime my.yaml"),
        (["--config=my.yaml"], "'--config=my.yaml' is not how a run file is given."),
        (["recipe=my.yaml"], "there is no recipe=my.yaml. A run file is a word of its own: slime my.yaml."),
        (["run=my.yaml"], "there is no key 'run'. A run file is a word of its own: slime my.yaml."),
        (["reward=my.py:good"], "there is no reward=my.py:good. A function of a file is reward.path=my.py:good."),
        (["my.toml"], "'my.toml' is neither a verb nor key=value. A run file is YAML, and its name ends with .yaml"),
        (["old"], "'old' is neither a verb nor key=value. Name the file of that run: old/config.yaml."),
    ],
)
def test_other_ways_to_name_a_file_get_the_right_one(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], error: str
) -> None:
    (here / "old").mkdir()
    (here / "old" / "config.yaml").touch()
    assert command.main(words) == 2
    assert error in capsys.readouterr().err


def test_the_page_s_file_and_commands_work(here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/run-file.md").read_text()
    (here / "sums.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    commands = [line.split()[2:] for line in page.splitlines() if line.startswith("$ slime")]
    names = [examine([word for word in words if word not in ("plan", "--fit")]).cfg.run.name for words in commands]
    assert len(names) == 4
    assert {*names} == {"glm4-tiny-local-sums", "glm4-tiny-local-sums-seed_7-optimizer.lr_0.0003"}
    (config,) = [line.split()[2:] for line in page.splitlines() if line.startswith("    slime plan runs/")]
    before = examine(["+model=glm4-tiny", "+cluster=local"])
    (here / config[0]).parent.mkdir(parents=True)
    (here / config[0]).write_text(before.yaml)
    assert f"`{(other := examine(config)).cfg.run.dir}/{other.cfg.run.name}`" in page
    (here / "sums.yaml").write_text((here / "sums.yaml").read_text().replace("num_steps", "num_step"))
    with pytest.raises(SlimeError) as raised:
        examine(["sums.yaml"])
    assert str(raised.value) in " ".join(page.split())


def written(here: Path, *argv: str) -> Composed:
    composed = examine(argv)
    (here / "config.yaml").write_text(composed.yaml)
    return composed


def test_the_config_of_a_run_is_that_run_until_something_else_is_learned(here: Path) -> None:
    before = written(here, "+model=glm4-tiny", "+cluster=local", "rollout.prompts_per_step=16", "eval.path=null")
    again = examine(["config.yaml"])
    assert container(again.cfg) == container(before.cfg)
    name = before.cfg.run.name
    assert again.notes == [f"config.yaml is taken unchanged; the run is '{name}' in runs"]
    longer = examine(["config.yaml", "run.num_steps=80"])
    assert longer.cfg.run.name == name
    assert longer.notes == [f"config.yaml is taken with run.num_steps: 40 -> 80; the run is '{name}' in runs"]
    other = examine(["config.yaml", "train.optimizer.lr=0.1"])
    assert other.cfg.run.name == f"{name}-optimizer.lr_0.1"
    assert other.notes[0].startswith("config.yaml is taken with train.optimizer.lr: 0.0002 -> 0.1; the run is ")
    assert examine(["config.yaml", "train.optimizer.lr=0.1", "run.name=mine"]).cfg.weights.path == "runs/mine/weights"
    assert examine(["config.yaml", "algo=gspo"]).cfg.algo.name == "gspo"
    assert examine(["config.yaml", "filter=dynamic-sampling"]).cfg.filter.name == "dynamic-sampling"
    assert examine(["config.yaml", "task=gsm8k"]).cfg.reward.name == "gsm8k"


def test_an_idle_key_over_the_config_of_a_run_is_refused_as_ever(here: Path) -> None:
    written(here, "+model=glm4-tiny", "+cluster=local")
    assert [problem.where for problem in examine(["config.yaml", "algo.clip_low=0.1"]).problems] == ["algo.clip_low"]
    (here / "my.yaml").write_text("algo.clip_low: 0.1\n")
    where = [problem.where for problem in examine(["config.yaml", "my.yaml"]).problems]
    assert where == ["my.yaml, line 1, algo.clip_low"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["config.yaml", "+cluster=local2"], "cluster=local2: config.yaml has its keys already"),
        (["my.yaml", "config.yaml"], "config.yaml: is the whole config of a run. Name it before all else."),
    ],
)
def test_what_the_config_of_a_run_cannot_stand_beside(here: Path, words: list[str], error: str) -> None:
    written(here, "+model=glm4-tiny", "+cluster=local")
    with pytest.raises(SlimeError, match=re.escape(error)):
        examine(words)


def test_a_damaged_config_of_a_run_is_named_by_its_line(here: Path) -> None:
    written(here, "+model=glm4-tiny", "+cluster=local")
    text = (here / "config.yaml").read_text()
    (here / "config.yaml").write_text(text.replace("  seed: 1234", "  seed: abc"))
    with pytest.raises(SlimeError, match=r"^config\.yaml, line 4: run\.seed: must be int, got 'abc'"):
        examine(["config.yaml"])
    (here / "config.yaml").write_text(text.replace("  seed: 1234", "  sed: 1234"))
    with pytest.raises(SlimeError, match=r"^config\.yaml, line 4: there is no key 'run\.sed'"):
        examine(["config.yaml"])


def test_each_setting_has_its_line(here: Path) -> None:
    (here / "my.yaml").write_text("base: &b {seed: 1}\nrun:\n  <<: *b\n  dir: x\n")
    found = {setting.key: setting.where for setting in read_run_file("my.yaml").settings}
    assert found == {"base": "my.yaml, line 1", "run.seed": "my.yaml, line 2", "run.dir": "my.yaml, line 4"}
