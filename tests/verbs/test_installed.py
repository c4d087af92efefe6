"""Verbs by hook: found by name, quick until they run, and told apart from those that are not installed."""

from __future__ import annotations

import pytest

from slime import extras, plugins
from slime.__main__ import main
from slime.errors import EXIT_ERROR
from slime_testing.verbs import check_verb
from tests.site import Site

VERBS = """
from slime.contracts import VerbFactory

@hookimpl
def slime_verbs():
    return {"acme": VerbFactory("what acme does", "acme_verbs.acme"),
            "plan --acme": VerbFactory("acme's plan", "acme_verbs.acme"),
            "plan acme": VerbFactory("acme's other plan", "acme_verbs.acme")}
"""
ACME = """
import sys

def add_arguments(parser):
    parser.description = "Does what acme does."
    parser.add_keys()
    parser.add_argument("--loud", action="store_true")

def run(args):
    print(args.words, args.keys, args.loud)
    return 3 if args.loud else None
"""


@pytest.fixture
def acme(site: Site) -> Site:
    site.add("acme-verbs", VERBS)
    (site.folder / "acme_verbs/acme.py").write_text(ACME)
    return site


@pytest.mark.parametrize("name", [item.name for item in plugins.load().verbs])
def test_contract(name: str) -> None:
    check_verb(name)


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("acme run.seed=1 --loud", 3, "['run.seed=1', '--loud'] ['run.seed=1'] True"),
        ("plan run.seed=1 --acme run.dir=x", 0, "['run.seed=1', 'run.dir=x'] ['run.seed=1', 'run.dir=x'] False"),
        ("plan acme run.seed=1", 0, "['run.seed=1'] ['run.seed=1'] False"),
    ],
)
def test_a_plugin_s_verb_and_options_are_called(
    acme: Site, line: str, code: int, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == code
    assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--help", "  slime acme        what acme does\n"),
        ("plan --help", "  slime plan --acme     acme's plan\n  slime plan acme       acme's other plan\n"),
        ("acme -h", "usage: slime acme [-h] [--loud] [key=value ...]\n\nDoes what acme does."),
        ("help plan acme", "usage: slime plan acme [-h] [--loud] [key=value ...]"),
    ],
)
def test_help_lists_what_is_installed(acme: Site, line: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("acm", "'acm' is neither a verb nor key=value. Did you mean 'acme'?"),
        ("run acme", "'run' is neither a verb nor key=value. Did you mean 'train'?"),
        ("run.seed=1 start", "'start' is neither a verb nor key=value. A value with blanks is quoted:"),
        ("acme --lod", "there is no flag '--lod'."),
        ("--acme", "there is no flag '--acme'. It belongs to 'slime plan'."),
        ("train --config", "there is no flag '--config' here. A run file is a word of its own: slime my.yaml;"),
    ],
)
def test_what_is_near_an_installed_verb(acme: Site, line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == EXIT_ERROR
    assert capsys.readouterr().err.startswith(f"slime: {said}")


def test_what_is_not_installed_says_which_package_brings_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    acme = extras.Apart("plugins/acme", ("plugins/tools",), ("verb/acme", "verb/plan --acme"))
    monkeypatch.setattr(extras, "distributions", lambda: {"slime-plugin-acme": acme})
    folders = "./plugins/tools ./plugins/acme"
    todo = f"Run: pip install slime-plugin-acme. In a checkout: pip install {folders}, or 'make setup'."
    for words in (["acme", "--help"], ["acme", "x"]):
        assert main(words) == EXIT_ERROR
        said = f"slime: 'slime acme' comes with slime-plugin-acme, which is not installed. {todo}\n"
        assert capsys.readouterr() == ("", said)
    assert main(["plan", "+model=glm4-tiny", "--acme"]) == EXIT_ERROR
    assert capsys.readouterr().err.startswith("slime: 'slime plan --acme' comes with slime-plugin-acme")
    assert main(["--help"]) == 0
    assert "acme (slime-plugin-acme), plan --acme (slime-plugin-acme)" in capsys.readouterr().out
    site.add("slime-plugin-acme", "import no_such_package")
    assert main(["acme"]) == EXIT_ERROR
    assert capsys.readouterr().err.startswith(
        "slime: plugin slime-plugin-acme 1.0: 'slime_plugin_acme' does not import"
    )


def test_a_host_need_not_have_the_driver_s_verbs(acme: Site) -> None:
    driver = plugins.load().fingerprint()
    assert "acme-verbs" not in driver
    assert not any(name.startswith("verb/") for name in driver["slime"]["contributes"])


def test_what_is_no_verb_is_refused_by_plugin(site: Site) -> None:
    site.add("acme-verbs", "@hookimpl\ndef slime_verbs(): return {'acme': dict}")
    [problem] = plugins.load().problems
    assert "slime_verbs returned {'acme': <class 'dict'>}, not {name: VerbFactory}" in str(problem)
