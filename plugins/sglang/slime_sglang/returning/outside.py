"""SGLang servers that somebody else started, as the engines of a run (`rollout.addresses`).

The trainers store each version in the folder of the transport `disk`, and the driver has every server take it from
there, as `slime follow` does. A server that does not answer, or does not take a version, gets no requests, and joins
again when it holds the newest one. The run ends once none has answered for `cluster.start_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slime.cluster.engine_return import Publishes
from slime.cluster.watch import WATCH_S
from slime.config.choices import Publish
from slime.config.paths import located
from slime.config.schema import SlimeConfig
from slime.engine_client.engine_set import EngineSet
from slime.engines.outside import addresses_of
from slime.errors import SlimeError
from slime.events import EngineBack, EngineLost, Event
from slime.sampling.held import beside
from slime_sglang.disk.folder import stored
from slime_sglang.disk.options import disk_weights
from slime_sglang.engine.driver.room import room_problem
from slime_sglang.engine.own import TAKES_WEIGHTS
from slime_sglang.returning.server import OutsideLink, OutsideServer
from slime_sglang.returning.wanted import PROBE, Wanted

if TYPE_CHECKING:
    from slime_sglang.disk.stored import Manifest

T = TypeVar("T")
log = logging.getLogger(__name__)
LOOK_S = 20.0
"""How long a server may take to say which weights it has: whatever it generates, another of its processes answers."""
VISIBLE_S = 60.0
"""How long a version may take to be seen on another host than its publisher's."""
UNTOUCHED = "default"
"""Weight version of a server of SGLang's to which nobody has given another one."""


async def tended(work: Coroutine[Any, Any, T], tend: Coroutine[Any, Any, None]) -> T:
    """The result of `work`, or what `tend` raises meanwhile, which does not end by itself."""
    working, tending = asyncio.ensure_future(work), asyncio.ensure_future(tend)
    try:
        await asyncio.wait([working, tending], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            tending.result()
        return working.result()
    finally:
        working.cancel()
        tending.cancel()
        await asyncio.wait([working, tending])


class OutsideEngines:
    """A `slime.cluster.engine_return.Returning`: the servers of `rollout.addresses`.

    Raises:
        SlimeError: none answers within `cluster.start_timeout_s`; one that does is not as the run needs it.
    """

    def __init__(self, cfg: SlimeConfig, tell: Callable[[Event], None]) -> None:
        self._cfg, self._tell = cfg, tell
        self._limit_s, self._timeout_s = cfg.cluster.start_timeout_s, cfg.rollout.request_timeout_s
        self._flushes = not (cfg.rollout.max_staleness and cfg.rollout.publish is Publish.keep)
        self._folder = Path(located(disk_weights(cfg.weights).path))
        self._newest = _newest(self._folder)
        self._manifest: Manifest | None = None
        self._wanted = Wanted(cfg.model, cfg.rollout, cfg.eval)
        self._servers: dict[str, OutsideServer] = {}
        self._looks: dict[OutsideServer, asyncio.Task[SlimeError | None]] = {}
        self._is_tending = False
        self._engines: EngineSet | None = None
        self._alone_since: float | None = time.monotonic()
        while True:
            servers = self._listed()
            for server, problem in zip(servers, _in_threads(self._compare, servers), strict=True):
                if problem and server.answers:
                    raise problem
                if problem:
                    self._note(server, problem)
            if any(server.answers for server in servers):
                return
            self._require_some()
            time.sleep(WATCH_S)

    def join(self, engines: EngineSet, learner: Publishes) -> None:
        """Be the engines of the sampler, whose weights come from `learner`. They take requests from the first publish
        on."""
        self._engines, self._learner = engines, learner
        for server in self._servers.values():
            self._add(server)

    def publish(self, version: int) -> dict[str, float]:
        """Hand the weights to every server that answers, and to one at least; returns metrics.

        Raises:
            SlimeError: no server took them.
        """
        before, metrics, start = self._newest, self._learner.publish([], version), time.monotonic()
        while (newest := _newest(self._folder)) == before or not newest.endswith(f"-v{version}"):
            if time.monotonic() > start + VISIBLE_S:
                what, todo = f"version {version} is not seen here", "Name a folder that every host sees alike."
                raise SlimeError(what, where=f"weights.path {self._folder}", todo=todo)
            time.sleep(0.05)
        from slime_sglang.disk.stored import read_manifest

        self._newest, self._manifest = newest, read_manifest(self._folder, newest)
        taking = time.monotonic()
        while True:
            listed = self._listed()
            there = [server for server in listed if server.answers] or listed  # who is gone may keep one waiting
            problems = _in_threads(self._bring, there)
            for server, problem in zip(there, problems, strict=True):
                self._note(server, problem)
            if any(server.serves for server in there):
                metrics["publish/seconds_verify"] += time.monotonic() - taking
                return metrics
            for problem in problems if all(server.answers for server in listed) else ():
                assert problem, "none serves"
                raise problem
            self._require_some()
            time.sleep(WATCH_S)

    async def beside(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which asks servers; those that answer again get weights and requests meanwhile."""
        return await tended(work, self._tend())

    def metrics(self) -> dict[str, float]:
        return {"engines/outside": float(sum(server.serves for server in self._servers.values()))}

    async def _tend(self) -> None:
        """Ask every server again and again. A look at one that is gone may outlast this; a version on its way does
        not."""
        looks, self._is_tending = self._looks, True
        try:
            while True:
                for server in self._listed():
                    if server not in looks:
                        looks[server] = asyncio.ensure_future(beside(partial(self._bring, server, tends=True)))
                if looks:  # a file may list none for a while
                    await asyncio.wait(looks.values(), timeout=WATCH_S)
                await self._take_looks()
                self._require_some()
                await asyncio.sleep(WATCH_S)
        finally:
            self._is_tending = False
            if taking := [look for server, look in looks.items() if server.is_taking]:
                await asyncio.wait(taking)
            await self._take_looks()

    async def _take_looks(self) -> None:
        for server in [server for server, look in self._looks.items() if look.done()]:
            problem = self._looks.pop(server).result()
            is_listed = server in self._servers.values()
            if is_listed and (problem or server.holds == self._newest):  # a version may have come since the look began
                self._note(server, problem)
            if not server.serves:
                await server.client.hang_up()

    def _listed(self) -> list[OutsideServer]:
        """The servers of now: files with addresses are read again. A list that cannot be read changes nothing."""
        try:
            listed = addresses_of(self._cfg.rollout.addresses)
        except SlimeError as error:
            if not self._servers:
                raise
            log.warning("%s", error)
            return [*self._servers.values()]
        for url in [url for url in self._servers if url not in listed]:
            gone = self._servers.pop(url)
            self._note(gone, SlimeError("is not listed any more", where=f"engine {url}", todo="List it again."))
            if self._engines:
                self._engines.remove(gone.client)
        for url in [url for url in listed if url not in self._servers]:
            self._servers[url] = OutsideServer(url, self._timeout_s)
            self._add(self._servers[url])
        return [*self._servers.values()]

    def _add(self, server: OutsideServer) -> None:
        if self._engines:
            self._engines.add(server.client)
            self._engines.lose(server.client)

    def _note(self, server: OutsideServer, problem: SlimeError | None) -> None:
        """Let a server take requests from now on, or no more, and tell it."""
        url, now = server.endpoint.url, time.monotonic()
        if problem is None and not server.serves:
            if self._engines:
                self._engines.regain(server.client)
            self._tell(EngineBack(url, None if server.left_at is None else now - server.left_at, url=url))
        elif problem and (server.serves or str(problem) != str(server.problem)):
            if self._engines:
                self._engines.lose(server.client)
            server.left_at = now if server.serves else server.left_at
            self._tell(EngineLost(url, f"{problem.where}: {problem.what}"))
        server.serves, server.problem = problem is None, problem
        serve = any(each.serves for each in self._servers.values())
        self._alone_since = None if serve else self._alone_since or now

    def _require_some(self) -> None:
        """Raise SlimeError where no server has taken requests for too long."""
        if self._alone_since is None or (lasts := time.monotonic() - self._alone_since) <= self._limit_s:
            return
        what = f"no server of {len(self._servers)} has answered for {lasts:.0f} s (cluster.start_timeout_s)"
        found = (f"{each.problem.where}: {each.problem.what}. " for each in self._servers.values() if each.problem)
        todo = f"{next(found, '')}Start one, then start the same command again to resume."
        raise SlimeError(what, where="rollout.addresses", todo=todo)

    def _link(self, server: OutsideServer, timeout_s: float) -> OutsideLink:
        version = self._manifest.version if self._manifest else 0
        return OutsideLink(server.endpoint, version, timeout_s, flushes=self._flushes)

    def _compare(self, server: OutsideServer) -> SlimeError | None:
        """Why a server cannot be an engine of the run; None: it is as the run needs it."""
        link, server.answers = self._link(server, LOOK_S), False
        try:
            info, model = link.request("/server_info"), link.request("/model_info")
            server.answers = True
            if not info["skip_tokenizer_init"]:
                asked = {"model": "", "prompt": PROBE, "add_special_tokens": False}
                info["tokens"] = link.request("/tokenize", asked)["tokens"]
        except SlimeError as error:
            return error
        if differences := self._wanted.differences(info, model):
            todo = "Start it as docs/outside-engines.md says, or take it off the list."
            return SlimeError("; ".join(differences), where=f"engine {server.endpoint}", todo=todo)
        return room_problem(server.endpoint.url, info, self._cfg)

    def _bring(self, server: OutsideServer, *, tends: bool = False) -> SlimeError | None:
        """See that a server holds the newest version; returns why it does not.

        Args:
            tends: as a part of `_tend`, whose end leaves servers without the version that are not taking it by then.
        """
        assert self._manifest, "a version was published"
        name, link, where = self._newest, self._link(server, LOOK_S), f"engine {server.endpoint}"
        try:
            if server.serves:
                found = link.weight_version()
                if server.holds == name and found == str(link.version):
                    return None
                if server.holds == name or not found.isdecimal():
                    what = f"has weights '{found}' and not those that it took: was it started again?"
                    return SlimeError(what, where=where, todo="It gets the newest.")
            elif server.refused == name:
                return server.problem
            elif problem := self._compare(server):
                return problem
            server.is_taking = True
            if tends and not self._is_tending:
                return server.problem or SlimeError("has no weights yet", where=where, todo="It gets the newest.")
            self._hand_over(server, name)
        except SlimeError as error:
            found = self._weight_version(server)
            server.answers, server.refused = bool(found), name if found else ""
            if found != UNTOUCHED:
                return error
            todo = f"Start it with {TAKES_WEIGHTS}=1, where slime-sglang is installed."
            return SlimeError("it knows nothing of slime's weights", where=where, todo=todo)
        finally:
            server.is_taking = False
        server.holds = name
        return None

    def _hand_over(self, server: OutsideServer, name: str) -> None:
        from slime_sglang.disk.publish import load_stored

        assert self._manifest
        if not server.serves:  # what is left of a time before it was left out
            link = self._link(server, LOOK_S)
            link.request("/abort_request", {"abort_all": True})
            link.request("/continue_generation", {})
        link = self._link(server, self._timeout_s)
        link.require_receipt(load_stored(link, self._folder, name), self._manifest.summary)

    def _weight_version(self, server: OutsideServer) -> str:
        """Empty: it is not there."""
        try:
            return self._link(server, LOOK_S).weight_version()
        except SlimeError:
            return ""


def _newest(folder: Path) -> str:
    """Name of the newest version; empty if there is none."""
    names = stored(folder) if folder.is_dir() else []
    return names[-1] if names else ""


def _in_threads(work: Callable[[OutsideServer], T], servers: Sequence[OutsideServer]) -> list[T]:
    with ThreadPool(max(len(servers), 1)) as pool:  # ends without waiting: a server may take minutes
        return pool.map(work, servers)
