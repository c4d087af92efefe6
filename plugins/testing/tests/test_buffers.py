"""The contract test of a buffer policy finds what is wrong with one."""

import pytest

from slime_testing.buffers import check_buffer
from tests.site import Site

SOUND = """
from dataclasses import dataclass
from slime.sampling.buffer import group_of, state_of
from slime.types import Decision

@dataclass
class Pile:
    most: int = 9

    def __post_init__(self):
        self.groups = []

    def put(self, group, version):
        if len(self.groups) >= self.most:
            return Decision(keep=False, reason="full")
        self.groups.append(group)
        return Decision(keep=True)

    def take(self, count, version):
        return [self.groups.pop() for _ in range(min(count, len(self.groups)))]

    def __len__(self):
        return len(self.groups)

    def state_dict(self):
        return {"groups": [state_of(group) for group in self.groups]}

    def load_state_dict(self, state):
        self.groups = [group_of(values) for values in state["groups"]]

@hookimpl
def slime_buffers():
    return {"pile": Pile}

@hookimpl
def slime_config_schemas():
    return {"buffer/pile": Pile}

@hookimpl
def slime_config_paths():
    return ["pkg://acme_pile.conf"]
"""


def install(site: Site, old: str = "", new: str = "") -> None:
    assert old in SOUND
    site.add("acme-pile", SOUND.replace(old, new), conf={"buffer/pile.yaml": "name: pile\n"})


def test_a_sound_policy_passes(site: Site) -> None:
    install(site)
    check_buffer("pile")
    check_buffer("pile", options={"most": 2})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    def __len__(self):\n        return len(self.groups)\n", "", "lacks a method"),
        ("self.groups = []", "self.groups = [None]", "a new buffer holds groups"),
        ("return Decision(keep=True)", "return True", "put gave True, not a Decision"),
        ('reason="full"', 'reason="is full"', "becomes a metric's name"),
        ("self.groups.append(group)", "group.samples.pop(); self.groups.append(group)", "put changed the group"),
        ("self.groups.append(group)", "self.groups += [group, group]", "it holds 2 groups: 0 before"),
        ("len(self.groups) >= self.most", "True", "none of 12 groups was kept"),
        ("self.groups.pop()", "self.groups[-1]", "still in the buffer"),
        ("min(count, len(self.groups))", "len(self.groups)", r"take\(0\) gave 9 groups"),
        ("min(count, len(self.groups))", "0", "nothing comes out of a buffer of 9 groups"),
        ("self.groups = [group_of", "self.groups += [group_of", "9 groups are 10 after a checkpoint"),
        ("in self.groups]}", "in self.groups[::-1]]}", "after a checkpoint other groups come out"),
        ('"groups": [state_of', '"groups": [vars', "state.groups"),
        (
            'self.most:\n            return Decision(keep=False, reason="full")',
            'self.most:\n            self.groups[0] = group; return Decision(keep=False, reason="full")',
            "came out, which was refused",
        ),
    ],
)
def test_a_faulty_policy_is_refused(site: Site, old: str, new: str, message: str) -> None:
    install(site, old, new)
    with pytest.raises(Exception, match=message):
        check_buffer("pile")


def test_a_state_that_is_no_copy_is_refused(site: Site) -> None:
    install(
        site,
        "[state_of(group) for group in self.groups]",
        "[{**state_of(g), 'x': g.samples[1].segments[0].tokens} for g in self.groups]",
    )
    with pytest.raises(AssertionError, match="state_dict has to copy"):
        check_buffer("pile")
