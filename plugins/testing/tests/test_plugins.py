"""The contract test of a plugin passes on a sound one, and says what is wrong with any other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slime import plugins
from slime.errors import SlimeError
from slime.types import Decision, Verdict
from slime_testing import plugins as contract
from slime_testing.plugins import RewardCase, check_filter, check_reward

SOUND = """
from dataclasses import dataclass
from slime.hookspecs import hookimpl
from slime.types import Decision, Verdict

@dataclass
class Half:
    value: float = 0.5

    def score(self, sample):
        return Verdict.of(self.value) if sample.response else Verdict.invalid("empty")

@dataclass
class Odd:
    reason: str = "even_size"

    def decide(self, group):
        return Decision(keep=True) if len(group.samples) % 2 else Decision(keep=False, reason=self.reason)

@hookimpl
def slime_rewards():
    return {"half": Half}

@hookimpl
def slime_filters():
    return {"odd": Odd}

@hookimpl
def slime_config_schemas():
    return {"reward/half": Half, "filter/odd": Odd}

@hookimpl
def slime_config_paths():
    return ["pkg://MODULE.conf"]
"""
REWARD_CASES = [RewardCase("x", None, 0.5), RewardCase("", None, Verdict.invalid("empty"))]
FILTER_CASES = [([1.0], Decision(keep=True)), ([1.0, None], Decision(keep=False, reason="even_size"))]

Install = Callable[..., None]
_serial = itertools.count()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs SOUND with one text replaced, as a distribution of its own, and forgets it after the test."""

    def installer(old: str = "", new: str = "", *, ship: tuple[str, ...] = ("reward/half", "filter/odd")) -> None:
        assert old in SOUND
        module = f"contract_{next(_serial)}"
        conf, info = tmp_path / module / "conf", tmp_path / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[slime]\n{module} = {module}\n")
        for option in ship:
            (conf / option).parent.mkdir(parents=True, exist_ok=True)
            (conf / f"{option}.yaml").write_text(f"name: {option.split('/')[1]}\n")
        (conf / "__init__.py").touch()
        (tmp_path / module / "__init__.py").write_text(SOUND.replace(old, new).replace("MODULE", module))
        monkeypatch.syspath_prepend(tmp_path)
        plugins.load.cache_clear()

    yield installer
    plugins.load.cache_clear()


def test_a_sound_plugin_passes(install: Install) -> None:
    install()
    check_reward("half", REWARD_CASES)
    check_reward("half", [RewardCase("x", None, 0.25)], options={"value": 0.25})
    check_filter("odd", FILTER_CASES)


def test_a_verdict_other_than_expected_is_shown(install: Install) -> None:
    install()
    with pytest.raises(AssertionError, match=r"'x' with label 7: .*0\.5.*, not 0\.6"):
        check_reward("half", [RewardCase("x", 7, 0.6)])


def test_a_part_other_than_expected_is_found(install: Install) -> None:
    install()
    with pytest.raises(AssertionError, match="'x' with label None"):
        check_reward("half", [RewardCase("x", None, Verdict.of(0.5, format=1.0))])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "Verdict.of(self.value)",
            "Verdict.of(0.5 + 1e-20 * int.from_bytes(__import__('os').urandom(4)))",
            "differently",
        ),
        ("Verdict.of(self.value)", "0.5", "not a Verdict"),
        ("Verdict.of(self.value)", "no_such_name", "NameError"),
        ('{"half": Half}', '{"half": lambda **options: Half()}', "takes options it does not know"),
        ("from dataclasses", "import colorsys\nfrom dataclasses", "imports colorsys"),
    ],
)
def test_a_faulty_reward_is_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.setattr(contract, "HEAVY", ("colorsys",))  # heavy enough for this test
    install(old, new)
    with pytest.raises(AssertionError, match=message):
        check_reward("half", REWARD_CASES)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def decide(self, group):", "def decide(self, group):\n        group.samples.pop()", ": Decision"),
        ("if len(group", "if group.samples[0].metadata.update(seen=1) or len(group", "the filter changed the group"),
        ("Decision(keep=True)", "True", "True, not Decision"),
    ],
)
def test_a_faulty_filter_is_refused(install: Install, old: str, new: str, message: str) -> None:
    install(old, new)
    with pytest.raises(AssertionError, match=message):
        check_filter("odd", FILTER_CASES)


def test_a_reason_that_is_no_metric_name_is_refused(install: Install) -> None:
    install()
    cases = [([1.0, 1.0], Decision(keep=False, reason="even size!"))]
    with pytest.raises(AssertionError, match="becomes a metric's name"):
        check_filter("odd", cases, options={"reason": "even size!"})


def test_a_reward_needs_neither_a_config_file_nor_a_schema(install: Install) -> None:
    """It is chosen by its name, and a dataclass types its own options."""
    install('"reward/half": Half, ', "", ship=("filter/odd",))
    check_reward("half", [RewardCase("x", None, 0.25)], options={"value": 0.25})


def test_a_reward_that_is_not_installed_gets_the_nearest_name(install: Install) -> None:
    install()
    with pytest.raises(SlimeError, match="Did you mean 'half'"):
        check_reward("hald", REWARD_CASES)
