"""What a run says where what its program or its rollout needs is not installed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from slime import plugins
from slime.compose.compose import examine
from slime.config.rollout import ProgramConfig
from slime.config.schema import SamplingConfig
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.registry import Contribution, Registry
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.sampling.programs import installed_kit, opened
from slime.types import Prompt, Sample, Status, Task, Turn
from slime_testing.programs import ProgramCase, _Letters, _Model

HOW = r"slime-agents, which is not installed\. Run: pip install slime-agents\. In a ch"


@dataclass
class Talker:
    async def run(self, task: Task, model: object) -> None:
        await model.conversation().turn()


@pytest.fixture
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.load(), "conversations", Registry("conversation", []))


def test_here_one_is_installed() -> None:
    assert installed_kit() is not None


@pytest.mark.usefixtures("_without")
def test_a_plan_names_what_its_program_needs() -> None:
    run = ["+model=glm4-tiny", "+cluster=local"]
    assert examine(run).needs == []
    [need] = examine([*run, "task=calculator"]).needs
    assert need.where == "rollout.program"
    assert "every program but 'single' needs slime-agents" in str(need)


def test_a_plan_names_what_generates_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins.load(), "rollouts", Registry("rollout", []))
    assert examine(["+model=glm4-tiny", "+cluster=local"]).needs == []
    [need] = examine(["+model=glm4-tiny", "+cluster=local", "rollout.max_staleness=1"]).needs
    assert need.where == "rollout.max_staleness"
    assert "slime-filters, which is not installed. Run: pip install slime-filters. In a ch" in str(need)


@pytest.mark.usefixtures("_without")
def test_a_program_in_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    talker = Contribution("program", "talker", Talker, "slime-talker", "1.0")
    monkeypatch.setattr(plugins.load(), "programs", Registry("program", [talker]))
    with pytest.raises(SlimeError, match=HOW), opened(ProgramConfig(name="talker")):
        pass


def test_a_conversation_is_refused() -> None:
    sample = Sample(Prompt("0/0", (), (1,), None, {}), 0)
    engine = _Model(ProgramCase([Turn("1", "stop")], "1"))
    generator = Generator(EngineSet([engine]), SamplingConfig(max_response_tokens=4), _Letters())
    assert asyncio.run(Attempts(Talker(), generator, 5, 1).run(sample))
    assert sample.status is Status.FAILED
    assert "need slime-agents, which is not installed" in sample.verdict.reason
