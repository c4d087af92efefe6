"""`pip install` of built wheels is all that a plugin needs, slime's own plugins included."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DEMO = ("+model=glm4-tiny", "+cluster=local")


def test_what_pip_installed_is_listed_and_comes_from_the_wheels(environment: Any) -> None:
    listed = environment.slime("plugins")
    assert listed.returncode == 0, listed.stderr
    for words in ("slime-plugin-glm4 0.1.0", "glm4_moe", "slime-rewards 0.1.0", "slime-closeness 0.3.0"):
        assert words in listed.stdout
    where = environment.run("-c", "import slime, slime_plugin_glm4; print(slime.__file__, slime_plugin_glm4.__file__)")
    assert all(Path(file).is_relative_to(environment.folder) for file in where.stdout.split())


def test_a_third_party_reward_is_chosen_by_name(environment: Any) -> None:
    plan = environment.slime("plan", *DEMO, "reward=closeness", "reward.options.scale=5")
    assert plan.returncode == 0, plan.stderr
    assert "closeness (slime-closeness 0.3.0)" in plan.stdout


def test_the_options_of_a_third_party_reward_are_checked(environment: Any) -> None:
    plan = environment.slime("plan", *DEMO, "reward=closeness", "reward.options.scael=5")
    assert plan.returncode == 2
    assert "Did you mean 'scale'?" in plan.stderr


def test_a_third_party_reward_scores_in_its_own_workers(environment: Any) -> None:
    code = """
import asyncio
from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime_testing.plugins import sample
with RewardService(RewardConfig(name="closeness", options={"scale": 5.0})) as service:
    print(asyncio.run(service.score(sample("70+15=80", "85"))).value)
"""
    scored = environment.run("-c", code)
    assert scored.stdout.strip() == "0.5", scored.stderr  # 5 / (5 + |80 - 85|)


def test_a_third_party_verb_stands_in_the_help(environment: Any) -> None:
    assert "  slime lengths     how long the responses of each step are\n" in environment.slime("--help").stdout


CONTRACTS = (
    "tests/third_party/closeness/tests",
    "tests/third_party/confidence/tests",
    "tests/third_party/mailbox/tests",
    "tests/third_party/beside/tests",
    "tests/third_party/live/tests",
    "tests/third_party/int8/tests",
    "tests/third_party/lengths/tests",
    "tests/third_party/retry/tests",
    "tests/third_party/median/tests",
    "tests/third_party/plain/tests",
    "tests/third_party/running/tests",
    "tests/third_party/weighted/tests",
    "tests/third_party/wreinforce/tests",
    "plugins/rewards/tests/math/test_rewards.py",
    "plugins/filters/tests/dynamic_sampling",
)


@pytest.fixture(scope="module")
def tested(environment: Any) -> str:
    """What pytest says of all of them, in one process."""
    root = Path(__file__).parents[2]
    options = ("-c", "/dev/null", "--rootdir", root, "--noconftest", "--import-mode=importlib", "-rA")
    done = environment.run("-m", "pytest", *options, *(root / tests for tests in CONTRACTS))
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.mark.parametrize("tests", CONTRACTS)
def test_a_plugin_s_own_contract_test_passes_where_only_wheels_are_installed(tested: str, tests: str) -> None:
    assert re.search(rf"^PASSED \S*/{re.escape(tests)}[/:]", tested, re.M), tested


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("import", ["does not import", "No module named 'a_package_that_nobody_has'"]),
        ("signature", ["wrong hook signature", "settings"]),
        ("misspelt", ["there is no hook 'slime_reward'", "Did you mean 'slime_rewards'"]),
        ("duplicate", ["reward 'math'", "slime-rewards"]),
        ("second", ["a ray_starter, of which a run takes one,", "slime-cluster"]),
        ("version", ["made for slime >=9", "this is slime"]),
        ("empty", ["contributes nothing"]),
        ("config", ["pkg://slime_broken_config.conf"]),
        ("raising", ["slime_rewards raised FileNotFoundError: rewards.json"]),
    ],
)
def test_a_broken_plugin_is_one_line_that_names_it_and_the_way_out(
    environment: Any, broken_wheels: Any, tmp_path: Path, fault: str, words: list[str]
) -> None:
    assert fault in broken_wheels
    beside = environment.unpacked(tmp_path, f"slime-broken-{fault}")
    for verb in (("plan", *DEMO), ("plugins",)):
        refused = beside.slime(*verb)
        assert refused.returncode == 2, f"{verb}: {refused.stdout}{refused.stderr}"
        lines = [line for line in refused.stderr.splitlines() if f"slime-broken-{fault} 0.1.0" in line]
        assert len(lines) == 1, refused.stderr
        assert "Traceback" not in refused.stderr
        for word in [*words, f"pip uninstall slime-broken-{fault}"]:
            assert word in lines[0]
