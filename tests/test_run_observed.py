"""A whole run as Prometheus and Perfetto see it: scraped while it lasts, drawn afterwards."""

from __future__ import annotations

import gzip
import json
import re
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slime_testing.patience import run_within
from tests.running import NO_CHECKPOINTS, NO_STOP, Run
from tests.typed import GUIDES, typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
PROMETHEUS = "observe.prometheus=9464"
SETTINGS = {
    "+rollout.sglang.enable_metrics": "true",
    "run.num_steps": 1000,
    "sft.num_steps": 0,
    "sft.path": "null",
    "sft.lr_warmup_steps": 0,
    "eval.path": "null",
    **NO_STOP,
    **NO_CHECKPOINTS,
}


def scraped(run: Run, process: str) -> dict[str, float]:
    """Sum of each metric over its labels, from where `targets.json` says that the process serves them."""
    groups = json.loads((run.path / "targets.json").read_text())
    [target] = [each["targets"][0] for each in groups if each["labels"] == {"run": "it", "process": process}]
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        found: dict[str, float] = {}
        for sample in (sample for family in families for sample in family.samples):
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_a_run_is_scraped_while_it_lasts_and_drawn_afterwards(tmp_path: Path) -> None:
    asked = typed("debugging.md", "observe.trace=true", tmp_path) | typed("debugging.md", PROMETHEUS, tmp_path)
    run = Run(tmp_path, settings={**asked, **SETTINGS, "observe.prometheus": 0}).start()
    run.until(lambda: run.has_step("rl", 2))
    before, driver, engine = run.rows("rl")[1], scraped(run, "driver"), scraped(run, "engine-0")
    run.process.terminate()
    run.finish()
    assert (driver["slime_engines"], driver["slime_phase"]) == (1, 1)
    row = run.rows("rl")[int(driver["slime_step"]) - 1]
    assert driver["slime_step"] >= 2
    assert driver["slime_step_end_timestamp_seconds"] == pytest.approx(row["time"], abs=1e-3)
    for name in ("train/loss", "train/grad_norm", "rollout/response_length_mean"):
        assert driver[f"slime_{name.replace('/', '_')}"] == row[name]
    assert engine["sglang:generation_tokens_total"] >= before["rollout/num_tokens"]
    assert json.loads((run.path / "targets.json").read_text()) == []
    for words in re.findall(r"^    slime trace runs/glm4-tiny-local(.*)$", (GUIDES / "debugging.md").read_text(), re.M):
        step = words.replace("12", "2").split()
        run_within(60, [sys.executable, "-m", "slime", "trace", run.path, *step], cwd=tmp_path)
    assert (run.path / "trace.json.gz").exists()
    found = json.loads(gzip.decompress((run.path / "trace-000002.json.gz").read_bytes()))["traceEvents"]
    whole = {each["name"]: each["dur"] / 1e6 for each in found if each["ph"] == "X"}
    assert whole["rl 2"] == pytest.approx(before["seconds/step"], abs=1e-3)
    assert whole["generate"] == pytest.approx(before["seconds/generate"], rel=0.2, abs=0.1)
    assert {"forward", "train", "publish", "gather"} <= whole.keys()
    requests = [each for each in found if each["ph"] == "b" and each["name"] == "request"]
    assert len(requests) >= 16, "one for each sample of the step"
