"""This machine's sandbox for others, as a server of SandboxFusion's form.

    python -m slime_rewards.code.serve --port 8080

It runs Python alone, each program confined as the reward `code` confines it. Whoever reaches the port may run programs:
it listens at 127.0.0.1 unless `--host` says otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Semaphore
from typing import Any

from slime_rewards.code.sandbox import WALL_PER_CPU, NotRunError, Spec, missing, run

_MOST_BYTES = 1 << 24


class SandboxServer(ThreadingHTTPServer):
    """A server of this machine's sandbox.

    Args:
        address: host and port; port 0 takes a free one.
        memory_mb: MiB by which a program may grow.
        at_once: programs that run at the same time.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], memory_mb: int = 512, at_once: int | None = None) -> None:
        super().__init__(address, _Handler)
        self.memory_mb, self.places = memory_mb, Semaphore(at_once or os.cpu_count() or 1)


class _Handler(BaseHTTPRequestHandler):
    server: SandboxServer

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/run_code" or not 0 < length <= _MOST_BYTES:
            self.send_error(404 if self.path != "/run_code" else 413)
            return
        try:
            asked = _read(self.rfile.read(length))
        except (ValueError, TypeError) as problem:
            self._answer(422, {"detail": str(problem)})
            return
        with self.server.places:
            self._answer(200, self._run(*asked))

    def _run(self, program: str, given: str, seconds: float) -> dict[str, Any]:
        cpu_s = max(1, math.ceil(seconds / WALL_PER_CPU))
        try:
            ended = run(Spec(program, cpu_s=cpu_s, memory_mb=self.server.memory_mb, most_s=seconds), given)
        except NotRunError as why:
            return {"status": "SandboxError", "message": str(why), "run_result": None}
        result = {"return_code": int(bool(ended.fault)), "stdout": ended.output, "stderr": ended.fault}
        result["status"] = "TimeLimitExceeded" if ended.is_late else "Finished"
        return {"status": "Failed" if ended.fault else "Success", "message": "", "run_result": result}

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a run asks thousands of times."""


def _read(body: bytes) -> tuple[str, str, float]:
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("it takes an object")
    code, given, seconds = asked.get("code"), asked.get("stdin") or "", float(asked.get("run_timeout", 10))
    if asked.get("language") != "python" or not isinstance(code, str) or not isinstance(given, str):
        raise ValueError("it takes 'code' and 'stdin' as text, and 'language': 'python'")
    if not 0 < seconds <= 3600:
        raise ValueError("'run_timeout' is above 0 and at most 3600 seconds")
    return code, given, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--memory-mb", type=int, default=512)
    parser.add_argument("--at-once", type=int, help="programs at the same time; the number of cores unless set")
    args = parser.parse_args()
    if lacks := missing():
        sys.exit(f"the sandbox cannot be had here: {lacks}")
    with SandboxServer((args.host, args.port), args.memory_mb, args.at_once) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
