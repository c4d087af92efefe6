"""From argv to the checked config: precedence, `+group=`, recipes, and Hydra's silent holes."""

import enum
from pathlib import Path

import pytest

from slime.compose.compose import compose, examine
from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from tests.site import Site

FAMILY = """
from slime.models.mapping import WeightMapping

class Bridge:
    family = "acme"
    def transformer_config(self, hf): return {"num_layers": hf["num_hidden_layers"], "num_attention_heads": 4}
    def model_kwargs(self, hf): return {}
    def block_spec(self, config, vp_stage): ...
    def weight_mapping(self, hf): return WeightMapping((), 2)
    def plan_problems(self, hf, megatron): return ["Acme dislikes it."] if "recompute_modules" in megatron else []

@hookimpl
def slime_models(): return {"acme": Bridge}

@hookimpl
def slime_rewards(): return {"first": lambda bonus=0.0: None, "second": lambda: None}

@hookimpl
def slime_config_paths(): return ["pkg://acme_models.conf"]
"""
RECIPE = """
# @package _global_
defaults:
  - override /reward: first
run: {num_steps: 5}
data: {path: pkg://acme_models/rows.jsonl}
rollout: {prompts_per_step: 7, max_prompt_tokens: 8, sampling: {max_response_tokens: 8}}
"""
CONF = {
    "model/acme-1.5b.yaml": "{name: acme-1.5b, family: acme, path: 'pkg://acme_models', init: random}",
    "reward/first.yaml": "name: first",
    "reward/second.yaml": "name: second",
    "recipe/acme-1.5b@local.yaml": RECIPE,
}
RUN = ["+model=acme-1.5b", "+cluster=local"]


@pytest.fixture
def acme(site: Site) -> Site:
    """A model plugin of its own, so that these tests do not depend on what else is installed."""
    add(site, CONF)
    package = site.folder / "acme_models"
    (package / "config.json").write_text('{"model_type": "acme", "num_hidden_layers": 2, "hidden_size": 8}')
    (package / "tokenizer.json").write_text("{}")
    (package / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (package / "rows.jsonl").write_text('{"prompt": "1+1=", "label": "2"}\n')
    return site


def add(site: Site, conf: dict[str, str]) -> None:
    site.add("acme-models", FAMILY, conf=conf)


@pytest.mark.parametrize("plus", ["", "+"])
def test_plus_before_a_group_changes_nothing(acme: Site, plus: str) -> None:
    cfg = compose([f"{plus}model=acme-1.5b", f"{plus}cluster=local"])
    assert (cfg.model.name, cfg.cluster.name, cfg.cluster.device) == ("acme-1.5b", "local", Device.cpu)
    assert cfg.run.name == "acme-1.5b-local"


def test_values_are_plain_dataclasses(acme: Site) -> None:
    cfg = compose(RUN)
    assert type(cfg) is SlimeConfig
    assert type(cfg.train.megatron) is dict
    assert isinstance(cfg.run.resume, enum.Enum)


def test_precedence_is_cluster_recipe_command_line(acme: Site) -> None:
    assert compose([*RUN, "recipe=none", "reward=first", *given(acme)]).rollout.prompts_per_step == 32
    assert compose(RUN).rollout.prompts_per_step == 7
    assert compose([*RUN, "rollout.prompts_per_step=9"]).rollout.prompts_per_step == 9


def given(acme: Site) -> list[str]:
    return [f"data.path={acme.folder}/acme_models/rows.jsonl", "run.num_steps=1"]


def test_command_line_choice_wins_over_the_recipe(acme: Site) -> None:
    assert compose(RUN).reward.name == "first"
    assert compose([*RUN, "reward=second"]).reward.name == "second"


def test_explicit_recipe_is_taken_on_any_cluster(acme: Site) -> None:
    cfg = compose(["+model=acme-1.5b", "+cluster=local2", "recipe=acme-1.5b@local"])
    assert (cfg.cluster.name, cfg.rollout.prompts_per_step) == ("local2", 7)


@pytest.mark.parametrize("plus", ["", "+"])
def test_group_of_a_plugin_comes_after_the_recipe(acme: Site, plus: str) -> None:
    small = "# @package _global_\nrollout: {prompts_per_step: 3}"
    add(acme, {**CONF, "experiment/small.yaml": small})
    assert compose([*RUN, f"{plus}experiment=small"]).rollout.prompts_per_step == 3
    with pytest.raises(SlimeError, match=r"there is no experiment=smal. Did you mean 'experiment=small'\?"):
        compose([*RUN, f"{plus}experiment=smal"])


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_foreign_keys_need_no_plus(acme: Site, plus: str) -> None:
    cfg = compose([*RUN, f"{plus}train.megatron.recompute_granularity=full", f"{plus}rollout.sglang.log_level=info"])
    assert cfg.train.megatron["recompute_granularity"] == "full"
    assert (cfg.train.megatron["recompute_method"], cfg.train.megatron["recompute_num_layers"]) == ("uniform", 1)
    assert cfg.rollout.sglang["log_level"] == "info"


def test_foreign_key_of_a_cluster_can_be_removed(acme: Site) -> None:
    assert "grammar_backend" not in compose([*RUN, "~rollout.sglang.grammar_backend"]).rollout.sglang
    with pytest.raises(SlimeError, match=r"there is no rollout\.sglang\.log_level to remove"):
        compose([*RUN, "~rollout.sglang.log_level"])


def test_mistyped_recipe_is_found(acme: Site) -> None:
    add(acme, {name.replace("recipe/acme-1.5b", "recipe/acme-1.5bb"): text for name, text in CONF.items()})
    (acme.folder / "acme_models/conf/recipe/acme-1.5b@local.yaml").unlink()
    with pytest.raises(
        SlimeError, match=r"recipe 'acme-1.5bb@local' of acme-models belongs to no .*acme-1.5b@local.yaml"
    ):
        compose(RUN)


def test_a_variant_of_a_recipe_is_taken_by_name_alone(acme: Site) -> None:
    more = "# @package _global_\ndefaults:\n  - /recipe@_global_: [acme-1.5b@local]\nrun:\n  num_steps: 2"
    add(acme, {**CONF, "recipe/acme-1.5b@local+short.yaml": more})
    usual, short = compose(RUN), compose([*RUN, "recipe=acme-1.5b@local+short"])
    assert usual.run.num_steps != short.run.num_steps == 2
    (acme.folder / "acme_models/conf/recipe/acme-1.5b@local.yaml").unlink()
    with pytest.raises(SlimeError, match=r"no reward is chosen"):  # nobody mistyped a name
        compose(RUN)


def test_two_providers_of_one_option_are_refused(acme: Site) -> None:
    other = "@hookimpl\ndef slime_config_paths(): return ['pkg://other_models.conf']"
    acme.add("other-models", other, conf={"model/acme-1.5b.yaml": "name: mine"})
    with pytest.raises(SlimeError, match=r"model=acme-1.5b is provided by both acme-models and other-models. Keep one"):
        compose(RUN)


def test_plugin_cannot_shadow_an_option_of_slime(acme: Site) -> None:
    add(acme, {**CONF, "cluster/local.yaml": "name: mine"})
    with pytest.raises(SlimeError, match="cluster=local is provided by both slime-rl and acme-models"):
        compose(RUN)


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "reward/first.yaml",
            "nme: first",
            r"reward/first.yaml: there is no key 'reward.nme'. Did you mean 'reward.name'",
        ),
        ("reward/first.yaml", "timeout_s: soon", r"reward.timeout_s: must be float, got 'soon'"),
        ("recipe/acme-1.5b@local.yaml", "run: {num_steps: 5}", r"there is no key 'recipe.*# @package _global_"),
        (
            "recipe/acme-1.5b@local.yaml",
            RECIPE.replace("/reward: first", "/reward: frist"),
            r"recipe acme-1.5b@local: there is no reward=frist. Did you mean 'first'\?",
        ),
        ("reward/first.yaml", "name: [", r"reward/first.yaml, line 1: is not YAML: .*Correct that file"),
        ("recipe/acme-1.5b@local.yaml", "a: b: c", r"acme-1.5b@local.yaml, line 1: is not YAML: mapping values"),
        ("model/acme-1.5b.yaml", "name: !!python/object:os.x {}", r"acme-1.5b.yaml.*is not YAML: could not determine"),
    ],
)
def test_mistakes_in_config_files_are_named(acme: Site, file: str, text: str, says: str) -> None:
    add(acme, {**CONF, file: text})
    with pytest.raises(SlimeError, match=says):
        compose(RUN)


def test_a_model_names_the_task_that_is_taken_if_none_is_chosen() -> None:
    assert compose(["+model=glm4-tiny", "+cluster=local"]).reward.name == "arithmetic"
    with pytest.raises(SlimeError, match="no reward is chosen"):
        compose(["+model=glm4-tiny", "+cluster=local", "task=none"])


def test_a_reward_in_place_of_a_tasks_own_says_how_to_drop_the_tasks_options() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "task=word-problems", "reward=f1"]
    with pytest.raises(SlimeError, match=r"option.* '~reward\.options\.answer' removes what a task"):
        compose(words)
    assert compose([*words, "~reward.options.answer"]).reward.name == "f1"


def test_a_recipe_without_a_cluster_is_for_any() -> None:
    assert examine(["+model=glm4-moe-tiny", "+cluster=local"]).choices["recipe"] == "glm4-moe-tiny"
    assert examine(["+model=glm4-moe-tiny", "+cluster=local2"]).choices["recipe"] == "glm4-moe-tiny@local2"


def test_what_is_not_fetched_yet_is_planned_and_not_run() -> None:
    words = ["+model=glm4-9b", "+cluster=h100x8"]
    composed = examine(words)
    assert composed.problems == []
    assert [need.where for need in composed.needs] == ["model.path", "data.path", "eval.path"]
    with pytest.raises(SlimeError, match="Run 'hf download zai-org/GLM-Z1-9B-0414 --local-dir"):
        compose(words)
    (problem,) = examine([*words, "data.path=nowhere.jsonl", "data.source=null"]).problems
    assert str(problem).startswith("data.path: there is no 'nowhere.jsonl'")


def test_broken_plugin_stops_the_run_by_name(acme: Site) -> None:
    acme.add("acme-broken", "import no_such_package")
    with pytest.raises(SlimeError, match=r"plugin acme-broken 1.0: .* does not import"):
        compose(RUN)


SELECTIVE = ["train.megatron.recompute_granularity=selective", "train.megatron.recompute_modules=[mlp]"]


def test_family_rules_are_asked(acme: Site) -> None:
    (problem,) = examine([*RUN, *SELECTIVE]).problems
    assert str(problem) == "model family acme: Acme dislikes it. Choose other sizes."


def test_compose_writes_nothing(acme: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    compose(RUN)
    assert list(folder.iterdir()) == []


def test_evaluation_samples_as_the_rollout_unless_it_is_told_otherwise(acme: Site) -> None:
    numbers = {"temperature": 0.5, "max_response_tokens": 30, "max_sequence_tokens": 60}
    long = [*(f"rollout.sampling.{name}={value}" for name, value in numbers.items()), "rollout.sampling.stop=[x]"]
    followed = compose([*RUN, *long]).eval.sampling
    assert vars(followed) == {**numbers, "top_p": 1.0, "top_k": -1, "stop": ["x"]}
    held_out = "eval.path=pkg://slime_rewards.math/data/arithmetic-heldout.jsonl"
    own = examine([*RUN, *long, held_out, "eval.sampling.temperature=0", "eval.sampling.stop=[]"])
    assert vars(own.cfg.eval.sampling) == vars(followed) | {"temperature": 0.0, "stop": []}
    assert "rollout.sampling" not in own.yaml, "the resolved config shows values"


def test_yaml_of_the_resolved_config_has_every_section(acme: Site) -> None:
    text = examine(RUN).yaml
    assert "name: acme-1.5b-local" in text
    assert "max_tokens_per_micro_batch" in text


def test_a_pair_without_a_recipe_names_those_that_there_are() -> None:
    composed = examine(["+model=glm5.2", "+cluster=h100x128"])
    assert composed.problems
    [warning] = composed.warnings
    assert str(warning).startswith(
        "there is no recipe glm5.2@h100x128 (only glm5.2@h100x256). The layout is the default"
    )
    assert "--fit" in warning.todo
    assert not examine(["+model=glm5.2", "+cluster=h100x256", "cluster.num_trainers=3"]).warnings


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("observe.trackers=[wandb]", "observe.trackers is a dictionary, and takes no other value. Write observe.trac"),
        (
            "observe.trackers=wandb",
            "observe.trackers is a dictionary, and takes no other value. Write observe.trackers",
        ),
        ("data.sets.more.share=1", "data.sets.more.path is not set. Set data.sets.more.path=<value>."),
        ("num_gpus=8", "there is no key 'num_gpus'. Did you mean 'cluster.devices_per_node'?"),
        ("rollout.addresses=10.0.0.1:30000", "rollout.addresses: must be list of str, got '10.0.0.1:30000'. It is: "),
        ("batch_size=8", "Did you mean 'rollout.prompts_per_step=<groups> sft.batch_size=<demonstrations>'?"),
        ("eval.interval=null", "every this many steps, and after the last; never with eval.path=null."),
        ("reward.pth=mine.py:score", "there is no key 'reward.pth'. Did you mean 'reward.path'?"),
        (
            "rollout.program.comand=x",
            "there is no key 'rollout.program.comand'. Did you mean 'rollout.program.command'?",
        ),
    ],
)
def test_a_word_of_another_kind_is_told_in_plain_words(word: str, says: str) -> None:
    with pytest.raises(SlimeError) as told:
        examine(["+model=glm4-tiny", "+cluster=local", word])
    assert says in str(told.value)


def test_a_limit_that_no_response_reaches_is_told() -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.sampling.max_sequence_tokens=40"]
    assert not examine([*words, "rollout.sampling.max_response_tokens=40"]).warnings
    long = "rollout.sampling.max_response_tokens=64"
    [warning, of_evaluation] = examine([*words, long, "eval.sampling.max_response_tokens=41"]).warnings
    assert str(warning) == (
        "rollout.sampling.max_response_tokens: is 64, but rollout.sampling.max_sequence_tokens=40 bounds prompt and "
        "response together. For longer responses raise rollout.sampling.max_sequence_tokens, too."
    )
    assert of_evaluation.where == "eval.sampling.max_response_tokens"
