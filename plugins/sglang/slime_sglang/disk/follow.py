"""`slime follow FOLDER URL ...`: engines outside a run take in the weights that it publishes to a folder."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from multiprocessing.pool import ApplyResult, ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING

from slime.arguments import ArgumentParser
from slime.errors import SlimeError
from slime.net import Endpoint, Secret

if TYPE_CHECKING:
    from slime_sglang.disk.stored import Manifest

KEY = "SLIME_ENGINE_KEY"
"""Environment variable with what the engines ask of requests: arguments can be read by others."""
_POLL_S = 1.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = f"""\
Have engines outside a run load the newest version of a folder of weights (weights.transport=disk), and each that
follows. What they ask of requests stands in {KEY}."""
    parser.add_argument("folder", type=Path, help="weights.path of the run, as the engines see it too")
    parser.add_argument("engines", nargs="+", metavar="URL", help="http://host:port of an SGLang server with slime")
    parser.add_argument("--once", action="store_true", help="load the newest version and end")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds a version may take (default: %(default)g)"
    )


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no version; with `--once` also: an engine did not take it."""
    follower = Follower(
        args.folder.absolute(), [Endpoint(url.rstrip("/"), Secret(os.environ.get(KEY, ""))) for url in args.engines]
    )
    if args.once:
        for error in follower.catch_up(args.timeout):
            raise error
        return
    told: set[str] = set()
    while True:
        for error in follower.catch_up(args.timeout):
            if str(error) not in told:
                print(f"slime: {error}", file=sys.stderr)
            told.add(str(error))
        time.sleep(_POLL_S)


def _error_of(loading: ApplyResult[None]) -> SlimeError | None:
    try:
        loading.get()
    except SlimeError as error:
        return error
    return None


class Follower:
    """Keeps engines at the newest version of a folder, those restarted ones included."""

    def __init__(self, folder: Path, engines: Sequence[Endpoint]) -> None:
        self._folder, self._engines = folder, engines
        self._taken = dict.fromkeys(engines, "")

    def catch_up(self, timeout_s: float) -> list[SlimeError]:
        """Let every engine that serves another version load the newest; returns what went wrong. Raises SlimeError
        where there is no version."""
        from slime_sglang.disk.folder import stored
        from slime_sglang.disk.stored import read_manifest

        names = stored(self._folder) if self._folder.is_dir() else []
        if not names:
            todo = "Name weights.path of a run with weights.transport=disk that has published."
            raise SlimeError("there is no version of weights", where=str(self._folder), todo=todo)
        manifest = read_manifest(self._folder, names[-1])
        with ThreadPool(len(self._engines)) as pool:  # ends without waiting: an engine may take minutes
            loading = [
                pool.apply_async(self._load, (engine, names[-1], manifest, timeout_s)) for engine in self._engines
            ]
            return [error for each in loading if (error := _error_of(each))]

    def _load(self, engine: Endpoint, name: str, manifest: Manifest, timeout_s: float) -> None:
        from slime.weights.publisher.engine_link import EngineLink
        from slime_sglang.disk.publish import load_stored

        link = EngineLink(engine, manifest.version, timeout_s)
        if self._taken[engine] == name and link.weight_version() == str(manifest.version):
            return
        start = time.monotonic()
        link.require_receipt(load_stored(link, self._folder, name), manifest.summary)
        self._taken[engine] = name
        print(f"{engine}: version {manifest.version} ({name}) in {time.monotonic() - start:.1f} s", flush=True)
