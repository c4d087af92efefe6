"""The contract test of a buffer policy, to be called from a plugin's own tests.

from slime_testing.buffers import check_buffer

def test_contract() -> None:
    check_buffer("freshest", options={"max_lag": 2})
"""

from __future__ import annotations

import copy

from slime import driver_state, plugins
from slime.contracts import BufferPolicy
from slime.segments import Segment, WeightSpan
from slime.types import Decision, Group, Prompt, Sample, Status, Verdict
from slime_testing.plugins import Options, check_contribution, check_reason, typed_options

NUM_GROUPS = 12
PER_VERSION = 3
TAKES = (0, 1, 4, 2 * NUM_GROUPS)


def unfinished(name: str, version: int) -> Group:
    """A group as an abort leaves it: one sample done and judged, one interrupted under `version`, one not begun."""
    prompt = Prompt(name, ({"role": "user", "content": "1+1="},), (4, 5), "2", {"level": 1})
    whole = Segment(prompt.tokens, [7, 0], [-0.5, -0.25], [1, 1], [WeightSpan(version, 2)])
    done = Sample(prompt, 0, [whole], Status.COMPLETED, "2")
    done.verdict = Verdict.of(1.0, format=0.5)
    spans = [WeightSpan(version - 1, 1), WeightSpan(version, 1)]
    part = Segment(prompt.tokens, [7, 8], [-0.5, -0.1], [1, 1], spans)
    return Group(prompt, [done, Sample(prompt, 1, [part], Status.ABORTED), Sample(prompt, 2)])


def check_buffer(name: str, options: Options | None = None) -> None:
    """Assert that buffer policy `name` is well installed and keeps its contract.

    Twelve groups go in, three under each weight version from 1 to 4; some come out under version 4. Each comes out at
    most once, unchanged, and not if it was refused. What a checkpoint holds makes an object that goes on alike.

    Args:
        options: `buffer.options` of the run; the plugin's schema must know and type them.

    Raises:
        AssertionError: a part of the contract is broken; says which.
        SlimeError: the state holds a value that a checkpoint cannot (`slime.driver_state`).
    """
    registry = plugins.load().buffers
    check_contribution(registry, name, options or {})
    typed = typed_options(f"buffer/{name}", options or {})
    buffer, resumed = registry.create(name, **typed), registry.create(name, **typed)
    assert isinstance(buffer, BufferPolicy), f"{type(buffer).__name__} lacks a method of slime.contracts.BufferPolicy"
    assert (len(buffer), buffer.take(3, 1)) == (0, []), "a new buffer holds groups"
    kept = _fill(buffer)
    assert kept, f"none of {NUM_GROUPS} groups was kept"
    _put(resumed, unfinished("0/before", 1), 1)
    resumed.load_state_dict(driver_state.loads(driver_state.dumps(buffer.state_dict())))
    assert len(resumed) == len(buffer), f"{len(buffer)} groups are {len(resumed)} after a checkpoint"
    _empty(buffer, resumed, kept)


def _fill(buffer: BufferPolicy) -> dict[str, Group]:
    """Id -> a copy of each group that was kept."""
    kept = {}
    for number in range(NUM_GROUPS):
        version = 1 + number // PER_VERSION
        group = unfinished(f"0/{number}", version)
        if _put(buffer, group, version).keep:
            kept[group.id] = copy.deepcopy(group)
    return kept


def _put(buffer: BufferPolicy, group: Group, version: int) -> Decision:
    before, held = copy.deepcopy(group), len(buffer)
    decision = buffer.put(group, version)
    assert isinstance(decision, Decision), f"put gave {decision!r}, not a Decision"
    check_reason(decision)
    assert group == before, "put changed the group"
    assert len(buffer) <= held + decision.keep, f"it holds {len(buffer)} groups: {held} before, and {decision}"
    return decision


def _empty(buffer: BufferPolicy, resumed: BufferPolicy, kept: dict[str, Group]) -> None:
    """Take from both alike; what comes out is what went in."""
    taken: list[Group] = []
    for count in TAKES:
        held, version = len(buffer), NUM_GROUPS // PER_VERSION
        state = buffer.state_dict()
        before = copy.deepcopy(state)
        groups = buffer.take(count, version)
        assert groups == resumed.take(count, version), "after a checkpoint other groups come out"
        assert len(groups) <= count, f"take({count}) gave {len(groups)} groups"
        assert len(buffer) <= held - len(groups), "groups that were taken are still in the buffer"
        taken += copy.deepcopy(groups)
        for group in groups:
            group.samples[1].segments[0].tokens.append(9)
        assert state == before, "what was taken is still a part of an earlier state: state_dict has to copy"
    assert taken, f"nothing comes out of a buffer of {len(kept)} groups"
    names = [group.id for group in taken]
    assert len(set(names)) == len(names), f"a group came out twice: {names}"
    for group in taken:
        assert group.id in kept, f"group {group.id} came out, which was refused"
        assert group == kept[group.id], f"group {group.id} came out otherwise than it went in"
