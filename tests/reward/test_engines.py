"""Engines that rewards ask: what a worker is told of them, and what becomes of verdicts when one dies."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

from slime.config.schema import RewardConfig
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.reward import engines
from slime.reward.engines import FrozenEngine, FrozenEngines
from slime.reward.service import RewardService
from slime.types import VerdictKind
from tests.reward.misbehaving import sample
from tests.waiting import until

FIRST, SECOND = Endpoint("http://host:1", Secret("one")), Endpoint("http://host:2", Secret("two"))
JUDGE = FrozenEngine(FIRST.url, FIRST.key, "models/judge")


def test_a_group_that_was_not_started_is_named_by_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_told", {"judge": [JUDGE]})
    assert engines.engines("judge") == [JUDGE]
    with pytest.raises(SlimeError, match=r"rollout.engines.jugde: no engine group 'jugde' .* Did you mean 'judge'\?"):
        engines.engines("jugde")


def test_it_is_waited_for_until_each_group_has_an_engine() -> None:
    frozen = FrozenEngines(["judge", "judge", "critic"], {"judge": "models/judge"})

    async def wait() -> engines.Addresses:
        waiting = asyncio.ensure_future(frozen.up())
        frozen.found(1, FIRST)
        await asyncio.sleep(3 * engines.POLL_S)
        assert not waiting.done()
        frozen.found(2, SECOND)
        return await waiting

    assert asyncio.run(wait()) == {"judge": [JUDGE], "critic": [FrozenEngine(SECOND.url, SECOND.key)]}
    assert asyncio.run(FrozenEngines().up()) == {}


ASKS = """
from pathlib import Path
from slime.reward.engines import engines

def score(response, label):
    [engine] = engines("judge")
    with Path(label).open("a") as asked:
        print(engine.url, engine.headers["Authorization"], file=asked)
    if engine.url != "http://host:2":
        raise ConnectionError("it is gone")
    return 1.0
"""


def test_a_verdict_that_failed_for_an_engine_that_died_is_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    said, frozen = tmp_path / "said.txt", FrozenEngines(["judge"])
    listens = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listens.getsockname()[1]}"
    frozen.found(0, Endpoint(url, Secret("one")))
    cfg = RewardConfig(name="function", options={"path": f"{tmp_path}/asks.py:score"}, timeout_s=200.0)

    async def ask(service: RewardService) -> None:
        failed = await service.score(sample("any", str(said)))
        assert failed.kind is VerdictKind.ERROR, "no engine died"
        assert "it is gone" in failed.reason
        asking = asyncio.ensure_future(service.score(sample("any", str(said))))
        listens.close()
        await asyncio.sleep(3 * engines.POLL_S)
        assert not asking.done(), "it will be known that the engine died"
        frozen.lost(0)
        await asyncio.sleep(3 * engines.POLL_S)
        assert not asking.done(), "it waits for the engine"
        frozen.found(0, SECOND)
        assert (await asking).value == 1.0

    with RewardService(cfg, frozen=frozen) as service:
        asyncio.run(ask(service))
    assert said.read_text().splitlines() == [*[f"{url} Bearer one"] * 2, "http://host:2 Bearer two"]


def test_an_objective_asks_again_where_an_engine_died_meanwhile() -> None:
    listens = socket.create_server(("127.0.0.1", 0))
    url, asked = f"http://127.0.0.1:{listens.getsockname()[1]}", list[str]()
    frozen = FrozenEngines(["teacher"])
    frozen.found(0, Endpoint(url, Secret("one")))

    def ask(group: Sequence[FrozenEngine]) -> str:
        asked.append(group[0].url)
        if group[0].url == url:
            raise SlimeError("no answer", todo="Start it.")
        return "it answers"

    with pytest.raises(SlimeError, match="no engine group 'teacher' with a model of its own was started"):
        engines.asking("teacher", ask)
    with engines.known_to_driver(frozen):
        with pytest.raises(SlimeError, match=r"no engine group 'tacher' .* Did you mean 'teacher'\?"):
            engines.asking("tacher", ask)
        with pytest.raises(SlimeError, match="no answer"):
            engines.asking("teacher", ask)
        listens.close()
        asking = Thread(target=lambda: asked.append(engines.asking("teacher", ask)))
        asking.start()
        until(lambda: len(asked) == 2)
        time.sleep(3 * engines.POLL_S)
        frozen.lost(0)
        frozen.found(0, SECOND)
        asking.join()
    assert asked == [url, url, SECOND.url, "it answers"]
