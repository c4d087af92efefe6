"""Loading plugins: what they contribute, and one line for each way in which one can be broken."""

import dataclasses
import inspect
import os
import sys

import pytest

from slime import plugins
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.hookspecs import SlimeHooks
from slime_testing.patience import run_within
from tests.site import Site

REWARD = """
@hookimpl
def slime_rewards():
    return {"%s": dict}
"""
NAMED = "plugin acme-reward 1.0: "
WAY_OUT = "remove it ('pip uninstall acme-reward')."


def problem_of(distribution: str) -> str:
    (plugin,) = [plugin for plugin in plugins.load().installed if plugin.distribution == distribution]
    return str(plugin.problem)


def test_builtins_come_through_the_same_hooks() -> None:
    installed = plugins.load()
    assert installed.filters.get("none").distribution == "slime-rl"
    assert installed.buffers.get("fifo").distribution == "slime-rl"


def test_contribution_is_created_with_its_options(site: Site) -> None:
    site.add("acme-reward", REWARD % "acme")
    assert plugins.load().rewards.create("acme", strict=True) == {"strict": True}


def test_unknown_name_gets_the_nearest_one(site: Site) -> None:
    site.add("acme-reward", REWARD % "acme")
    with pytest.raises(SlimeError, match=r"no reward named 'acmee' is installed. Did you mean 'acme'\?"):
        plugins.load().rewards.create("acmee")


@pytest.mark.parametrize(
    ("source", "requires", "says"),
    [
        ("import no_such_package", "slime", "does not import (ModuleNotFoundError: No module named 'no_such_package')"),
        ("def broken(:", "slime", "does not import (SyntaxError"),
        ("raise KeyError('x')", "slime", "does not import (KeyError: 'x')"),
        ("raise SystemExit(0)", "slime", "does not import (SystemExit: 0)"),
        ("raise BaseException('x')", "slime", "does not import (BaseException: x)"),
        ("@hookimpl\ndef slime_rewards(): raise SystemExit(3)", "slime", "slime_rewards raised SystemExit: 3"),
        ("@hookimpl\ndef slime_rewards(cfg): return {}", "slime", "wrong hook signature: "),
        ("@hookimpl\ndef slime_reward(): return {}", "slime", "no hook 'slime_reward'. Did you mean 'slime_rewards'?"),
        ("@hookimpl\ndef slime_rewards(): return ['a']", "slime", "returned ['a'], not {name: factory}"),
        ("@hookimpl\ndef slime_rewards(): return {'a': 1}", "slime", "returned {'a': 1}, not {name: factory}"),
        ("@hookimpl\ndef slime_rewards(): return 1 / 0", "slime", "slime_rewards raised ZeroDivisionError: division"),
        (REWARD % "acme", "slime-rl>=0.2,<0.3", "made for slime <0.3,>=0.2, this is slime 0.1.0"),
        ("def slime_rewards(): return {}", "slime", "it contributes nothing (are its hooks marked with @hookimpl?)"),
        (
            "@hookimpl\ndef slime_config_paths(): return ['pkg://acme_reward.cnf']",
            "slime",
            "names 'pkg://acme_reward.c",
        ),
        (
            "@hookimpl\ndef slime_config_schemas(): return {'reward/acm': int}",
            "slime",
            "schema for 'reward/acm', which",
        ),
    ],
)
def test_broken_plugin_is_one_line_with_the_way_out(site: Site, source: str, requires: str, says: str) -> None:
    site.add("acme-reward", source, requires=requires)
    line = problem_of("acme-reward")
    assert line.startswith(NAMED)
    assert says in line
    assert line.endswith(WAY_OUT)
    assert "\n" not in line
    with pytest.raises(SlimeError, match="plugin acme-reward"):
        plugins.load().require_sound()


def test_two_contributions_of_one_name_name_both_distributions(site: Site) -> None:
    site.add("acme-reward", REWARD % "acme")
    site.add("other-reward", REWARD % "acme")
    assert "reward 'acme' is also brought by other-reward" in problem_of("acme-reward")
    assert "reward 'acme' is also brought by acme-reward" in problem_of("other-reward")


def test_two_entry_points_of_one_name_name_both_distributions(site: Site) -> None:
    site.add("acme-reward", REWARD % "acme", entry="reward")
    site.add("other-reward", REWARD % "other", entry="reward")
    assert "entry point 'reward' is also brought by other-reward" in problem_of("acme-reward")
    assert "entry point 'reward' is also brought by acme-reward" in problem_of("other-reward")


@pytest.mark.parametrize("kind", plugins.ALONE)
def test_two_of_a_kind_of_which_a_run_takes_one_name_both_distributions(site: Site, kind: str) -> None:
    """The first by name is as good as any other: the user decides, before anything starts."""
    (installed,) = plugins.load().registries[kind]
    site.add("acme-first", f"@hookimpl\ndef slime_{kind}s(): return {{'aaa': dict}}")
    says = f"a {kind}, of which a run takes one, is also brought by {installed.distribution}"
    assert says in problem_of("acme-first")
    assert problem_of("acme-first").endswith("remove the other, or remove it ('pip uninstall acme-first').")
    told = [str(each) for each in plugins.load().problems]
    assert any(f"plugin {installed.distribution} " in line and "brought by acme-first" in line for line in told)
    with pytest.raises(SlimeError, match="of which a run takes one"):
        plugins.load().require_sound()


def test_builtin_is_never_blamed_for_a_duplicate(site: Site) -> None:
    site.add("acme-filter", "@hookimpl\ndef slime_filters(): return {'none': dict}")
    assert "filter 'none' is also brought by slime-rl" in problem_of("acme-filter")
    assert plugins.load().filters.get("none").distribution == "slime-rl"


def test_check_hook_names_its_distribution(site: Site) -> None:
    site.add("acme-check", "@hookimpl\ndef slime_check(cfg): return [f'{cfg.run.dir} is too long.']")
    (problem,) = plugins.load().check(SlimeConfig())
    assert str(problem) == "acme-check: runs is too long. Change the keys it names."


def test_a_check_gets_the_sections_that_it_names(site: Site) -> None:
    site.add("acme-check", "@hookimpl\ndef slime_check(rollout, run): return [f'{rollout.backend} in {run.dir}']")
    (problem,) = plugins.load().check(SlimeConfig())
    assert problem.what == "sglang in runs"


def test_a_check_may_name_every_section() -> None:
    offered = inspect.signature(SlimeHooks.slime_check).parameters
    assert [*offered] == ["self", "cfg", *(field.name for field in dataclasses.fields(SlimeConfig))]


def test_provenance_tells_where_a_used_name_came_from(site: Site) -> None:
    site.add("acme-reward", REWARD % "acme", version="2.3")
    record = plugins.load().provenance({"reward": "acme", "filter": "none"})
    assert record["used"]["reward"] == {"name": "acme", "distribution": "acme-reward", "version": "2.3"}
    assert record["used"]["filter"]["distribution"] == "slime-rl"
    assert record["installed"]["acme-reward"]["contributes"] == ["reward/acme"]


HANGS = {
    "asleep": "import time; time.sleep(1000)",
    "busy": "while True: pass",
    "in C": "import ctypes; ctypes.CDLL(None).pause()",
    "in a hook": "@hookimpl\ndef slime_rewards():\n    while True: pass",
}


@pytest.mark.parametrize("source", HANGS.values(), ids=HANGS)
def test_a_plugin_that_hangs_ends_slime_with_its_name(site: Site, source: str) -> None:
    site.add("acme-reward", source)
    program = "from slime import foreign, __main__; foreign.PATIENCE_S = 3; __main__.main(['plugins'])"
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = run_within(60, [sys.executable, "-c", program], env=environment, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("slime: plugin acme-reward 1.0: it takes longer than 3 s to import, or to answer a hook; ")
    assert line.endswith(WAY_OUT)


def test_a_plugin_that_takes_its_time_is_named_and_waited_for(site: Site) -> None:
    site.add("acme-reward", "import time; time.sleep(3)\n" + REWARD % "acme")
    program = "from slime import foreign, __main__; foreign.NOTICE_S = 1.5; __main__.main(['plugins'])"
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    done = run_within(60, [sys.executable, "-c", program], env=environment, check=False)
    assert "acme-reward" in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "slime: plugin acme-reward 1.0: it takes longer than 1.5 s to import, or to answer a hook; it s"
    )
    assert "slime waits for it until 120 s" in line
