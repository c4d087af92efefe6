"""`slime probe`: its table, and a whole probe of the tiny model."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.__main__ import main
from slime.config.paths import resolve
from slime.train.rank import Usage
from slime_testing.models import write_checkpoint
from slime_testing.patience import run_within
from slime_tools.fit.probe import PHASES, Measured, _predicted
from slime_tools.memory.trainer import GIB, Phase


def test_the_fullest_device_and_host_count() -> None:
    usage = [Usage("a", 5, 10), Usage("a", 7, 10), Usage("b", 6, 15)]
    one = Measured("train", 1.0, usage)
    assert (one.device, one.host) == (7, 20)
    assert Measured("train", 1.0, [Usage("a", None, 10)]).device is None
    assert Measured("start", 1.0).host is None


def test_predicted_beside_it_is_what_the_plan_says_of_trainers() -> None:
    plan = plan_of("+model=glm4-9b", "+cluster=h100x8")
    for name in PHASES:
        device, host = _predicted(plan, name)
        assert device is not None
        assert host is not None
    [place] = plan.devices
    assert _predicted(plan, "train")[0] == place.table.total(Phase.train)
    [of_host] = plan.hosts
    assert _predicted(plan, "publish")[1] == of_host.table.total(Phase.publish) - 8 * 5 * GIB, "engines have their own"
    assert _predicted(plan, "start") == (None, None)


def test_a_wrong_config_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "+model=glm4-tiny", "+cluster=local", "cluster.num_trainers=2"]) == 2
    assert "the run needs 2 (one for each trainer rank)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_probe_of_the_tiny_model_needs_its_config_json_alone(tmp_path: Path) -> None:
    """And whatever a frozen group has to load, which stands beside it as in the run."""
    shutil.copy(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny") / "config.json", tmp_path)
    judge = resolve("pkg://slime_plugin_llama/assets/llama-tiny")
    write_checkpoint(json.loads((judge / "config.json").read_text()), tmp_path / "judge")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(judge / name, tmp_path / "judge")
    words = ["+model=glm4-tiny", "+cluster=local", "eval.path=null", "sft.num_steps=0"]
    words += ["reward=judge", "reward.options.engines=judge", f"rollout.engines.judge.model={tmp_path / 'judge'}"]
    words += [f"model.path={tmp_path}", "data.path=nowhere.jsonl"]
    command = [sys.executable, "-m", "slime", "probe", *words]
    done = run_within(250, command, cwd=tmp_path)
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line[:1].isalpha()}
    for name in ("train", "publish", "generate"):
        seconds, _, device, _, host, _ = rows[name]
        assert float(seconds) > 0
        assert device == "-", "no GPU"
        assert 0.2 < float(host) < 5
    assert float(rows["start"][0]) > 0
