import copy

from slime import driver_state
from slime.contracts import BufferPolicy
from slime.rollout.buffer import FifoBuffer
from slime.types import Group, Prompt, Sample, Status, Verdict, WeightSpan


def group(name, version=3):
    """One sample done, one interrupted, one not begun."""
    prompt = Prompt(name, ({"role": "user", "content": "1+1="},), (4, 5), "2", {"level": 1})
    done = Sample(prompt, 0, [7, 0], [-0.5, -0.25], [1, 1], [WeightSpan(version, 2)], Status.COMPLETED, "2")
    done.verdict = Verdict.of(1.0, format=0.5)
    partial = Sample(prompt, 1, [7, 8], [-0.5, -0.1], [1, 1], [WeightSpan(version, 1), WeightSpan(version + 1, 1)])
    partial.status = Status.ABORTED
    return Group(prompt, [done, partial, Sample(prompt, 2)])


def stored(buffer, *names, version=3):
    return [buffer.put(group(name, version), version) for name in names]


def test_it_is_a_buffer_policy():
    assert isinstance(FifoBuffer(), BufferPolicy)


def test_first_in_first_out():
    buffer = FifoBuffer()
    stored(buffer, "a", "b", "c")
    assert [group.id for group in buffer.take(2, 3)] == ["a", "b"]
    assert [group.id for group in buffer.take(2, 3)] == ["c"]
    assert len(buffer) == 0


def test_a_full_buffer_refuses_with_a_reason():
    buffer = FifoBuffer(max_groups=2)
    decisions = stored(buffer, "a", "b", "c")
    assert [decision.keep for decision in decisions] == [True, True, False]
    assert decisions[2].reason == "full"
    assert len(buffer) == 2


def test_contents_survive_a_checkpoint():
    buffer, resumed = FifoBuffer(), FifoBuffer()
    stored(buffer, "a", "b")
    resumed.load_state_dict(driver_state.loads(driver_state.dumps(buffer.state_dict())))
    assert len(resumed) == 2
    assert resumed.take(2, 3) == buffer.take(2, 3)


def test_the_state_is_a_copy():
    buffer = FifoBuffer()
    stored(buffer, "a")
    state = buffer.state_dict()
    before = copy.deepcopy(state)
    buffer.take(1, 3)[0].samples[1].response_tokens.append(9)
    assert state == before
