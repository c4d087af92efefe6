"""`/metrics` of the driver, in Prometheus' text format, and `targets.json`, which tells Prometheus where to scrape."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from slime import files
from slime.errors import SlimeError
from slime.events import Ended, EngineBack, EngineLost, Event, Phase, Serving, StageEnded, Step
from slime.net import LOOPBACK
from slime.types import TrackedRun

TARGETS = "targets.json"
"""In the run directory, as Prometheus' `file_sd_configs` reads it."""


class Exporter(Collector):
    """Serves the newest metrics of one run until it ends; a subscriber of its events.

    Args:
        address: `PORT` on this host's loopback address, or `HOST:PORT`; port 0: one that is free.

    Raises:
        SlimeError: nobody can listen there.
    """

    def __init__(self, run: TrackedRun, address: str) -> None:
        self._run, self._lock = run, threading.Lock()
        self._steps: dict[str, Step] = {}
        self._values: dict[tuple[str, str], float] = {}  # newest value by stage and name: some steps lack some
        self._phase = ""
        self._engines: dict[str, str] = {}
        self._lost: set[str] = set()
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry()
        try:
            self._server, _ = start_http_server(int(port), host or LOOPBACK, registry)
        except (ValueError, OSError, OverflowError) as error:
            todo = "Set a free port, or HOST:PORT with an address of this host; 0 takes any port."
            raise SlimeError(f"cannot listen at {address} ({error})", where="observe.prometheus", todo=todo) from error
        registry.register(self)
        self._own = f"{host or LOOPBACK}:{self._server.server_port}"
        self._write_targets()

    def __call__(self, event: Event) -> None:
        with self._lock:  # a scrape reads in a thread of its own
            match event:
                case Phase():
                    self._phase = event.name
                case StageEnded():
                    self._phase = ""
                case Step():
                    self._steps[event.stage] = event
                    self._values |= {(event.stage, name): value for name, value in event.values.items()}
                case EngineLost():
                    self._lost.add(event.engine)
                case EngineBack():
                    self._lost.discard(event.engine)
        match event:
            case Serving():
                self._engines = dict(event.urls)
                self._write_targets()
            case EngineBack():
                self._engines[event.engine] = event.url
                self._write_targets()
            case Ended():
                self._server.shutdown()
                self._server.server_close()
                files.write_atomic(self._run.folder / TARGETS, b"[]\n")

    def _write_targets(self) -> None:
        """Engines are listed where they serve metrics of their own (`rollout.sglang.enable_metrics`)."""
        serve = self._run.config.get("rollout", {}).get("sglang", {}).get("enable_metrics")
        engines = {name: urlsplit(url).netloc for name, url in self._engines.items()} if serve else {}
        found = [
            {"targets": [target], "labels": {"run": self._run.name, "process": process}}
            for process, target in {"driver": self._own, **engines}.items()
        ]
        files.write_atomic(self._run.folder / TARGETS, json.dumps(found, indent=1).encode() + b"\n")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What a scrape gets."""
        with self._lock:
            steps, values, phase, num_lost = [*self._steps.values()], {**self._values}, self._phase, len(self._lost)
        run = self._run.name
        yield _gauge("slime_step", "Newest step of a stage.", {(run, each.stage): each.step for each in steps})
        times = {(run, each.stage): each.time for each in steps}
        yield _gauge("slime_step_end_timestamp_seconds", "Unix time at which it ended.", times)
        yield _gauge("slime_phase", "1: what the run does now.", {(run, phase): 1.0} if phase else {}, "phase")
        engines = {(run, "up"): len(self._engines) - num_lost, (run, "lost"): num_lost}
        yield _gauge("slime_engines", "Engines that take requests, and those that start again.", engines, "state")
        named: dict[str, dict[tuple[str, str], float]] = {}
        for (stage, name), value in values.items():
            named.setdefault(exported(name), {})[run, stage] = value
        for name, of_stages in named.items():
            yield _gauge(name, "A metric of the newest step that has it, as in metrics.jsonl.", of_stages)


def exported(name: str) -> str:
    """`slime_train_loss` for `train/loss`, and `slime_generate_seconds` for `seconds/generate`: a unit comes last."""
    name = re.sub(r"\bseconds[/_](\w+)$", r"\1_seconds", name)
    return re.sub(r"[^a-zA-Z0-9_]", "_", f"slime_{name}").replace("_per_s", "_per_second")


def _gauge(name: str, what: str, values: Mapping[tuple[str, str], float], label: str = "stage") -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=["run", label])
    for labels, value in values.items():
        family.add_metric(labels, float(value))
    return family
