from slime.sampling.buffer import FifoBuffer
from slime_testing.buffers import check_buffer, unfinished


def stored(buffer, *names, version=3):
    return [buffer.put(unfinished(name, version), version) for name in names]


def test_it_keeps_the_contract():
    check_buffer("fifo")
    check_buffer("fifo", options={"max_groups": 3})


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
