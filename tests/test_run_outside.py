"""A whole run whose engines somebody else started, outside of Ray and by SGLang's own command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from slime.net import LOOPBACK, reserved_port
from slime_testing.patience import Patience
from tests.running import NO_CHECKPOINTS, NO_STOP, Run
from tests.test_run_engines_killed import outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEY = "of the fleet"
FLAGS = (
    "--load-format dummy --device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 "
    "--grammar-backend none --disable-cuda-graph --disable-overlap-schedule --mem-fraction-static 0.2 "
    "--max-total-tokens 20000 --enable-deterministic-inference --chunked-prefill-size -1 --sleep-on-idle "
    "--skip-server-warmup"
)


class Server:
    """`python -m sglang.launch_server`; started again it has the same address."""

    def __init__(self, model: Path, port: int, log: Path) -> None:
        self.url, self._log = f"http://{LOOPBACK}:{port}", log
        at = ["--model-path", str(model), "--host", LOOPBACK, "--port", str(port), "--api-key", KEY]
        self._command = [sys.executable, "-m", "sglang.launch_server", *at, *FLAGS.split()]
        self._environment = {**os.environ, "SLIME_ENGINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self._environment |= {"TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1"}  # as engines of a run have it

    def start(self) -> Server:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        return self

    def is_up(self) -> bool:
        assert self.process.poll() is None, self._log.read_text()[-3000:]
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
            return True
        return False

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """SIGKILL to all of its processes; another one to the server, as its owner would."""
        with suppress(ProcessLookupError):
            if how is signal.SIGKILL:
                os.killpg(self.process.pid, how)
            else:
                self.process.send_signal(how)
        self.process.wait(120)


def wait_for(*servers: Server) -> None:
    assert Patience(250.0, lambda: [server.process.pid for server in servers]).wait_for(
        lambda: all(server.is_up() for server in servers)
    )


@pytest.fixture
def servers(tiny_model: Path, tmp_path: Path) -> Iterator[list[Server]]:
    """Two that take weights."""
    with reserved_port(LOOPBACK) as one, reserved_port(LOOPBACK) as other:
        made = [Server(tiny_model, port, tmp_path / f"server-{port}.log").start() for port in (one, other)]
        try:
            wait_for(*made)
            yield made
        finally:
            for server in made:
                server.kill()


def test_servers_of_others_come_and_go_and_the_run_learns_what_it_would_with_its_own(
    finished: Run, servers: list[Server], tmp_path: Path
) -> None:
    """One is listed from the beginning, with one that is never there; the other one comes, the first one is killed,
    comes back, and the other one is told to end."""
    first, other = servers
    with reserved_port(LOOPBACK) as port:
        absent = f"http://{LOOPBACK}:{port}"
        listed = tmp_path / "servers.txt"
        listed.write_text(f"{first.url}\n{absent}\n")
        settings = {**NO_CHECKPOINTS, **NO_STOP, "run.num_steps": 2000, "rollout.addresses": f"[{listed}]"}
        settings |= {"eval.interval": 2, "cluster.hang_timeout_s": 600}
        run = Run(tmp_path, settings=settings, environment={"SLIME_ENGINE_KEY": KEY}).start()
        run.until(lambda: run.has_step("rl", 4))
        assert f"{first.url} takes requests\n" in run.text()
        assert f"{absent}: is not reachable" in run.text()
        steps = [row for row in outcome(run) if row["step"] <= 4]
        wanted = outcome(finished)
        assert steps == wanted

        listed.write_text(f"{first.url}\n{absent}\n{other.url}\n")
        run.until(lambda: f"{other.url} takes requests\n" in run.text())
        first.kill()
        run.until(lambda: f"engine {first.url}" in run.text())
        assert "it is left out until it answers" in run.text()
        at = run.rows("rl")[-1]["step"]
        run.until(lambda: run.has_step("rl", at + 3))

        first.start()
        wait_for(first)
        run.until(lambda: f"{first.url} takes requests again" in run.text())
        other.kill(signal.SIGTERM)
        run.until(lambda: f"engine {other.url}" in run.text())
        at = run.rows("rl")[-1]["step"]
        run.until(lambda: run.has_step("rl", at + 3))
        assert run.process.poll() is None, run.text()
        run.process.send_signal(signal.SIGINT)
        assert run.finish() == 130, run.text()
