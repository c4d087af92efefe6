"""When a copy begins, by what ranks answer of the one before."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from slime.cluster.calls import Calls
from slime.cluster.copies import Copies
from slime.config.schema import ClusterConfig


class Answers:
    """Of two ranks, about their parts of a copy (`TrainerActor.copied`)."""

    trainers = ("trainer-0", "trainer-1")

    def __init__(self) -> None:
        self.faults: list[str | None] = ["", None]

    def all(self, *asked: Any) -> list[str | None]:
        return self.faults


def pending(step: int) -> tuple[Copies, Answers]:
    answers = Answers()
    copies = Copies(cast("Calls", answers), ClusterConfig(), "test")
    copies._pending = step
    return copies, answers


def test_a_copy_that_is_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    copies, answers = pending(3)
    with caplog.at_level(logging.WARNING):
        assert not copies.may_begin(4)
        assert not copies.may_begin(5)
    [told] = caplog.messages
    assert told.startswith("the copy of step 4 is left out: that of step 3 is on its way.")
    assert "train.checkpoint.in_memory_every" in told
    answers.faults = ["", ""]
    assert copies.may_begin(6)


def test_after_a_copy_that_failed_none_begins(caplog: pytest.LogCaptureFixture) -> None:
    copies, answers = pending(3)
    answers.faults = ["", "no room"]
    with caplog.at_level(logging.WARNING):
        assert not copies.may_begin(4)
        assert not copies.may_begin(5)
    [told] = caplog.messages
    assert told.startswith("the copy of step 3 in host memory failed: no room.")
