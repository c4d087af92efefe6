"""What Prometheus scrapes, read by its own parser; that a real run serves it is in tests/test_run_observed.py."""

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slime.errors import SlimeError
from slime.events import Ended, EngineBack, EngineLost, Event, Phase, Serving, Step
from slime.types import TrackedRun
from slime_observers.prometheus.exporter import Exporter, exported
from slime_testing.plugins import check_subscriber


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    """Makes exporters, which are ended after the test."""
    made: list[Exporter] = []

    def start(address: str = "0", *, engines: bool = True) -> Exporter:
        config = {"rollout": {"sglang": {"enable_metrics": engines}}}
        made.append(Exporter(TrackedRun("it", tmp_path, config), address))
        return made[-1]

    yield start
    for each in made:
        each(Ended("finished"))


def targets(folder: Path) -> dict[str, str]:
    """By process, as Prometheus' `file_sd_configs` reads the file: a list of groups, each with targets and labels."""
    groups = json.loads((folder / "targets.json").read_text())
    assert all(each["labels"]["run"] == "it" and len(each["targets"]) == 1 for each in groups)
    return {each["labels"]["process"]: each["targets"][0] for each in groups}


def scraped(folder: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """Name -> labels beside the run's name -> value."""
    with urllib.request.urlopen(f"http://{targets(folder)['driver']}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("run") == "it"
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


EVENTS: tuple[Event, ...] = (
    Serving({"engine-0": "http://10.0.0.1:40001", "engine-1": "http://10.0.0.1:40002"}),
    Step("sft", 4, {"train/loss": 2.5}, time=900.0),
    Step("rl", 2, {"train/loss": -0.5, "eval/reward_mean": 0.25, "seconds/generate": 3.0}, time=1000.0),
    Step("rl", 3, {"train/loss": float("nan"), "tokens_per_s": 7.0, "filter/drop/too-easy": 1.0}, time=1010.0),
    Phase("generate", 1, 4),
    EngineLost("engine-1", "was killed", 1, 3),
)


def test_it_takes_the_events_of_a_run(tmp_path: Path) -> None:
    check_subscriber("prometheus", tmp_path)
    assert [*tmp_path.iterdir()] == [], "nobody asked for it"


def test_a_scrape_has_the_newest_value_of_each_metric(started: Callable[..., Exporter], tmp_path: Path) -> None:
    exporter = started()
    assert scraped(tmp_path) == {"slime_engines": {("up",): 0.0, ("lost",): 0.0}}
    for event in EVENTS:
        exporter(event)
    found = scraped(tmp_path)
    assert str(found.pop("slime_train_loss")) == "{('sft',): 2.5, ('rl',): nan}"
    assert found == {
        "slime_step": {("sft",): 4.0, ("rl",): 3.0},
        "slime_step_end_timestamp_seconds": {("sft",): 900.0, ("rl",): 1010.0},
        "slime_phase": {("generate",): 1.0},
        "slime_engines": {("up",): 1.0, ("lost",): 1.0},
        "slime_eval_reward_mean": {("rl",): 0.25},
        "slime_generate_seconds": {("rl",): 3.0},
        "slime_tokens_per_second": {("rl",): 7.0},
        "slime_filter_drop_too_easy": {("rl",): 1.0},
    }


def test_targets_follow_the_engines_and_are_none_in_the_end(started: Callable[..., Exporter], tmp_path: Path) -> None:
    exporter = started()
    exporter(EVENTS[0])
    exporter(EngineBack("engine-1", 20.0, url="http://10.0.0.1:50002"))
    found = targets(tmp_path)
    assert (found["engine-0"], found["engine-1"]) == ("10.0.0.1:40001", "10.0.0.1:50002")
    exporter(Ended("interrupted"))
    assert targets(tmp_path) == {}
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(found["driver"].split(":"), timeout=5)


def test_engines_that_serve_no_metrics_are_no_targets(started: Callable[..., Exporter], tmp_path: Path) -> None:
    started(engines=False)(EVENTS[0])
    assert [*targets(tmp_path)] == ["driver"]


@pytest.mark.parametrize("address", ["here", "70000", "192.0.2.77:0", "no-such-host.invalid:9464"])
def test_an_address_where_nobody_can_listen_is_named(started: Callable[..., Exporter], address: str) -> None:
    with pytest.raises(SlimeError, match=rf"observe\.prometheus: cannot listen at {address} \(.*Set a free port"):
        started(address)


def test_a_port_that_is_taken_is_refused(started: Callable[..., Exporter]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SlimeError, match="cannot listen at"):
        started(str(taken.getsockname()[1]))


def test_names_are_prometheus_own(started: Callable[..., Exporter]) -> None:
    assert exported("rollout/reward_mean") == "slime_rollout_reward_mean"
    assert exported("publish/seconds_gather") == "slime_publish_gather_seconds"
