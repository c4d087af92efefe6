"""What agents of this month's packages sent on their default paths is answered, and is what is trained on."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from plugins.agents.tests.endpoint.played import Stage, program_of
from plugins.agents.tests.endpoint.record import FRAMEWORKS, PACKAGES, answers
from slime.types import Sample, Status

RECORDED = json.loads(FRAMEWORKS.read_text())


async def replayed(requests, folder) -> tuple[Stage, Sample, list[httpx.Response]]:
    """An attempt that sends these requests, one after the other, and what it was answered."""
    found, stage = [], Stage(folder, answers)

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=120) as client:
            for one in requests:
                url = f"{endpoint.url}/{one['path']}"
                body = goes_on(one["body"], found[-1]) if found else one["body"]
                found.append(await client.post(url, json=body, headers=one["headers"]))

    return stage, await stage.make(program_of(agent)), found


def goes_on(body: dict, last: httpx.Response) -> dict:
    """A thread goes on behind the answer of this attempt, in place of the recorded one."""
    thread = body.get("thread") or {}
    if thread.get("type") != "continue":
        return body
    return {**body, "thread": {**thread, "previous_message_id": last.json()["id"]}}


@pytest.mark.parametrize("recorded", RECORDED, ids=[each["agent"] for each in RECORDED])
def test_an_agent_is_answered_and_trained_on(tmp_path, recorded):
    stage, sample, found = asyncio.run(replayed(recorded["requests"], tmp_path))
    assert sample.status is Status.COMPLETED, sample.verdict
    assert {answer.status_code for answer in found} == {200}, [answer.text for answer in found]
    stage.check(sample)
    assert sample.metadata["forks"] == recorded["forks"]
    assert sample.metadata["requests"] == len(recorded["requests"]) == len(stage.engine.requests)
    assert sample.metadata["ill_formed_calls"] == 0


def test_each_agent_has_its_recording():
    assert [each["agent"] for each in RECORDED] == list(PACKAGES)
    assert {each["agent"] for each in RECORDED if each["forks"]} <= {"smolagents_calls"}, (
        "it rewrites its calls as words"
    )
