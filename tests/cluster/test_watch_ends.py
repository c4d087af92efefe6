"""Which of several servers' ends is the cause."""

import itertools

from slime.cluster.watch import first_end
from slime.errors import SlimeError
from slime.rollout.engine import End


def end(name, at, *, killed=False):
    return End(killed, at, SlimeError("ended", where=name, todo="Read its log."))


def test_one_that_was_killed_comes_before_one_that_gave_up_and_else_the_first():
    for ends in itertools.permutations([end("gave up", 9.99), end("killed", 10.0, killed=True), None]):
        assert first_end(ends).where == "killed"
    for ends in itertools.permutations([end("first", 9.99), end("second", 10.0), None]):
        assert first_end(ends).where == "first"
    assert first_end([None, None]) is None
