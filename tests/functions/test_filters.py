"""Filters that are functions or classes of a file: their contract, and what goes wrong in their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime import plugins
from slime.config.schema import FilterConfig
from slime.errors import SlimeError
from slime.functions.filters import own_filter
from slime.sampling.guarded import FilterChain
from slime.types import Decision
from slime_testing.plugins import check_filter, group

FILE = """
from dataclasses import dataclass
from slime.types import Decision

def keep(group):
    return max(group.rewards) > min(group.rewards)

def by_rewards(rewards, least=0.5):
    return Decision(True) if max(rewards) >= least else Decision(False, "nothing_good")

def check_reward_nonzero_std(args, samples, **kwargs):
    import torch
    return torch.tensor([sample.get_reward_value(args) for sample in samples]).std() > 0.0

class Output:
    def __init__(self, keep, reason):
        self.keep, self.reason = keep, reason

def with_a_reason(args, samples, **kwargs):
    rewards = [sample.reward for sample in samples if len(sample.response) < args.longest]
    keep = max(rewards) > min(rewards)
    return Output(keep, None if keep else f"zero_std_{round(rewards[0], 1)}")

@dataclass
class Good:
    least: float = 1.0

    def decide(self, group):
        return by_rewards(group.rewards, self.least)

def says_nothing(group):
    print(group.id)

def counts(group):
    return len(group.samples)

def breaks(group):
    return group.prompt.metadata["level"] > 1

class Bad(Good):
    def decide(self, group):
        raise KeyError("level")
"""
EQUAL, DIFFERENT = [1.0, 1.0], [0.0, 1.0]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my.py"
    path.write_text(FILE)
    return path


def dropped(reason: str) -> Decision:
    return Decision(keep=False, reason=reason)


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("keep", {}, "not_keep"),
        ("check_reward_nonzero_std", {}, "not_check_reward_nonzero_std"),
        ("with_a_reason", {"longest": 5}, "zero_std_1_0"),
    ],
)
def test_a_function_says_which_groups_are_kept(file: Path, name: str, arguments: dict[str, int], reason: str) -> None:
    """Of slime's form and of THUDM/slime's; failed rewards are left out, and two are needed to compare."""
    cases = [(DIFFERENT, Decision(keep=True)), (EQUAL, dropped(reason)), ([1.0, None], dropped("too_few_values"))]
    cases.append(([1.0, None, 1.0], dropped(reason)))
    check_filter("function", cases, {"path": f"{file}:{name}", "arguments": arguments})


def test_a_function_may_give_a_decision_and_a_class_is_made_with_arguments(file: Path) -> None:
    cases = [(DIFFERENT, Decision(keep=True)), ([0.0, 0.25], dropped("nothing_good"))]
    for name in ("by_rewards", "Good"):
        check_filter("function", cases, {"path": f"{file}:{name}", "arguments": {"least": 0.5}})


def test_what_goes_wrong_in_a_file_is_told_with_its_line(file: Path) -> None:
    for name, said in {
        "says_nothing": "returned None, not true or false, or a Decision",
        "counts": "returned 2, not true or false",
        "breaks": "raised KeyError: 'level' (my.py:38)",
        "with_a_reason": "raised AttributeError: args has no 'longest': set it among the function's arguments (my.",
    }.items():
        with pytest.raises(SlimeError) as refused:
            own_filter(path=f"{file}:{name}").decide(group(DIFFERENT))
        assert f"{file}:{name} {said}" in str(refused.value)
    chain = FilterChain(plugins.load().filters, FilterConfig("function", {"path": f"{file}:Bad"}), 10.0)
    with pytest.raises(
        SlimeError, match=r"^filter .*my.py:Bad: decide raised KeyError: 'level' \(my.py:42 in decide\)"
    ):
        chain.decide(group(DIFFERENT))
    assert (
        FilterChain(plugins.load().filters, FilterConfig("function", {"path": f"{file}:Good"}), 10.0)
        .decide(group(DIFFERENT))
        .keep
    )


def test_samples_are_read_by_the_names_of_both_projects(file: Path) -> None:
    file.write_text(
        "def keep(args, samples):\n"
        "    one = samples[0]\n"
        "    assert (one.response_length, len(one.tokens)) == (4, 4), one.tokens\n"
        "    assert (one.prompt, one.label, one.metadata, one.index, one.reward) == ([], None, {}, 0, 0.0)\n"
        "    try:\n"
        "        one.reward = 1.0\n"
        "    except AttributeError:\n"
        "        return True\n"
    )
    assert own_filter(path=f"{file}:keep").decide(group(DIFFERENT, lengths=[4, 4])).keep
