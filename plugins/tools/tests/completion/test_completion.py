"""What shells are told, and that they take it: bash by its own variables, fish by its own command."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest

from slime.__main__ import main
from slime.verbs import installed
from slime_tools.completion.command import SCRIPTS, words_for
from tests.site import Site

SLIME = f'slime() {{ {shlex.quote(sys.executable)} -m slime "$@"; }}\n'


def test_verbs_come_first_and_only_there() -> None:
    verbs = {name for name in installed.names() if " " not in name}
    assert {word for word in words_for("slime ") if re.fullmatch("[a-z][a-z-]*", word)} == verbs
    assert words_for("slime pl") == ["plan", "plugins"]
    assert words_for("slime plan pl") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("slime +mod", ["+model="]),
        ("slime plan +model=glm4-ti", ["+model=glm4-tiny"]),
        ("slime eval runs/it cluster=h200x4", ["cluster=h200x4", "cluster=h200x4-split"]),
        ("slime run.res", ["run.resume="]),
        ("slime run.resume=", ["run.resume=auto", "run.resume=must", "run.resume=never", "run.resume=restart"]),
        ("slime weights.transport=d", ["weights.transport=disk"]),
        ("slime run.progress=", ["run.progress=false", "run.progress=true"]),
        ("slime rollout.sam", ["rollout.samples_per_prompt=", "rollout.sampling."]),
        ("slime train.megatron.tensor", ["train.megatron.tensor_model_parallel_size="]),
        ("slime rollout.sglang.tp", ["rollout.sglang.tp_size="]),
        ("slime plan --", ["--all", "--config", "--fit", "--help", "--json"]),
        ("slime --f", []),
        ("slime plugins --", ["--help", "--json"]),
        ("slime plugins mo", []),
        ("slime samples ru", []),
        ("slime samples --pro", ["--prompts"]),
        ("slime plan +model=glm4-tiny --f", ["--fit"]),
        ("slime plan --fit --", ["--help", "--json"]),
        ("slime eval ", []),
        ("slime completion ", sorted(SCRIPTS)),
        ("slime convert ", ["bf16-to-fp8", "check", "dist-to-hf", "fp8-to-bf16", "hf-to-dist", "random"]),
        ("slime plan conv", ["convert"]),
        ("slime plan convert ", ["bf16-to-fp8", "dist-to-hf", "fp8-to-bf16", "hf-to-dist"]),
        ("slime convert check ", []),
        ("slime convert bf16-to-fp8 --li", ["--like"]),
    ],
)
def test_what_may_follow(line: str, words: list[str]) -> None:
    assert words_for(line) == words


def test_a_choice_that_was_made_is_not_offered_again() -> None:
    assert "model=" in words_for("slime plan ")
    assert "model=" not in words_for("slime plan +model=glm4-tiny ")


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("slime pl", "plan plugins"),
        ("slime plan +model=glm4-ti", "glm4-tiny"),
        ("slime recipe=glm4-9b@h200x4", "h200x4 h200x4-split"),
        ("slime run.resume=", "auto must never restart"),
        ("slime plan model.path=some", ""),
    ],
)
def test_bash_replaces_the_part_of_a_word_that_it_completes(line: str, reply: str) -> None:
    call = f'COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)}\n_slime 2>/dev/null\necho "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", SLIME + SCRIPTS["bash"] + call], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == reply, done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_takes_the_words() -> None:
    function = f"function slime; {shlex.quote(sys.executable)} -m slime $argv; end\n"
    script = f"{function}{SCRIPTS['fish']}complete -C 'slime plan +model=glm4-ti'"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["+model=glm4-tiny"], done.stderr


def test_names_that_a_plugin_brings_are_completed(site: Site) -> None:
    site.add("acme-reward", "@hookimpl\ndef slime_rewards(): return {'strictly': dict}")
    assert words_for("slime reward=str") == ["reward=strictly"]


def test_the_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == SCRIPTS["zsh"]
