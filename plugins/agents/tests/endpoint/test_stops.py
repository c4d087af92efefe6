"""Stop strings act behind the thinking, in every format that thinks; what is trained on ends where the answer did."""

from __future__ import annotations

import httpx
import pytest

from plugins.agents.tests.endpoint.played import END, Stage
from slime.types import Status
from slime_agents.endpoint.hearing import Stops

THOUGHT = "I want an Observation: of it.\n\nThought: </code> so\n"
SAID = "Action: add\nObservation: made up"


def played(tmp_path, name, text, *bodies):
    """What each request is answered, and the sample."""
    stage = Stage(tmp_path, lambda before: text, name)
    got = []

    async def agent(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as client:
            for number, body in enumerate(bodies):
                messages = [{"role": "user", "content": f"x{number}"}]
                answer = await client.post(f"{endpoint.url}/chat/completions", json={"messages": messages, **body})
                choice = answer.json()["choices"][0]
                got.append((choice["message"]["content"], choice["message"].get("reasoning_content"), choice))

    sample = stage.play(agent)
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    return got, stage.trained(sample)


@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("qwen3", "<think>\n"),
        ("glm-4.5", "\n<think>"),
        ("glm-4.7, glm-5", ""),
        ("qwen3", None),
        ("deepseek-v3", ""),
        ("qwen2.5, mimo", "<think>"),
        ("gemma-3", None),
    ],
)
@pytest.mark.parametrize(
    ("stop", "said"),
    [(["Observation:"], "Action: add"), (["\n"], "Action: add"), (["Thought:", "</code>"], SAID), ("Action", ""),
     (["</think>"], SAID), (["made", "Obs"], "Action: add")],
)  # fmt: skip
def test_a_stop_string_acts_behind_the_thinking(tmp_path, name, opening, stop, said):
    end = Stage(tmp_path, str, name).form.ends[0]
    thought = "" if opening is None else f"{opening}{THOUGHT}</think>\n\n"
    [(text, reasoning, choice)], [trained] = played(tmp_path, name, f"{thought}{SAID}{end}", {"stop": stop})
    assert (text or "", reasoning or "") == (said, THOUGHT.strip() if thought else "")
    assert choice["finish_reason"] == "stop"
    whole = thought + SAID
    assert whole.startswith(trained.removesuffix(end)), "what was sampled, to the end of the stop string"
    assert trained.endswith(end) == (said == SAID)


def test_thinking_that_does_not_end_is_cut_by_no_stop_string(tmp_path):
    bodies = ({"stop": ["Observation:"], "max_tokens": 20}, {"stop": ["Observation:"]})
    (cut, whole), trained = played(tmp_path, "qwen3", f"<think>\n{THOUGHT}{END}", *bodies)
    assert (cut[2]["finish_reason"], whole[2]["finish_reason"]) == ("length", "stop")
    assert whole[:2] == ("", THOUGHT.strip())
    assert f"<think>\n{THOUGHT}{END}" in trained


@pytest.mark.parametrize("strings", [("a",), ("<",), ("k>",), ("\n",), ("</think>",), ("b", "a b"), ("<think>x",)])
@pytest.mark.parametrize("opens", [False, True])
@pytest.mark.parametrize(
    "text", ["<think>a\n</think>\n\na b\n", "a b", " <think>", "<th a", "x</think>\na</think>b", "\n"]
)
def test_what_has_ended_has_ended_for_every_longer_text(strings, opens, text):
    """The end is looked for by halving, and an answer is cut where it was found."""
    stops = Stops(strings, opens)
    ended = [stops(text[:length]) for length in range(len(text) + 1)]
    assert ended == sorted(ended)
    places = {stops.first(text[:length]) for length in range(len(text) + 1)} - {None}
    assert len({place for place, _ in places}) <= 1 or strings == ("b", "a b"), "the longer string begins before"
