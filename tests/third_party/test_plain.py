"""Another inference server under a run: engines that generate with transformers, chosen by `rollout.backend`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime import command
from slime.compose import needs
from slime.compose.compose import examine
from slime.config.schema import Device
from slime.engines.software import software
from slime.errors import EXIT_ERROR, SlimeError
from tests.running import Run
from tests.site import Site

PLAIN = Path(__file__).parent / "plain"


@pytest.fixture
def plain(site: Site) -> Site:
    """Laid out as pip would."""
    files = [*PLAIN.glob("*.toml"), *PLAIN.glob("slime_plain/*.py")]
    site.add_project({str(file.relative_to(PLAIN)): file.read_text() for file in files})
    return site


def test_a_wrong_name_is_answered_with_the_installed_ones(plain: Site, capsys: pytest.CaptureFixture[str]) -> None:
    words = "rollout.backend: no engine named 'vllm' is installed. Choose one of: plain, sglang."
    assert type(software(Device.cpu, "plain")).__name__ == "Plain"
    with pytest.raises(SlimeError) as raised:
        software(Device.cpu, "vllm")
    assert str(raised.value) == words
    plan = ["plan", "+model=qwen3-tiny", "+cluster=local"]
    assert command.main([*plan, "rollout.backend=vllm"]) == EXIT_ERROR
    assert words in capsys.readouterr().err
    assert command.main([*plan, "--all", "rollout.backend=plain"]) == 0
    assert re.search(r"^ +engine +1  plain, disaggregated, weights by ipc$", capsys.readouterr().out, re.MULTILINE)


def test_a_run_with_it_needs_nothing_of_sglang(plain: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "absent", lambda device: ["megatron-core", "sglang", "slime-sglang"])
    told = {}
    for name in ("plain", "sglang"):
        words = ["+model=qwen3-tiny", "+cluster=local", f"rollout.backend={name}"]
        told[name] = [str(need) for need in examine(words).needs if "not installed" in str(need)]
    assert [line.partition(" not installed")[0] for line in told["plain"]] == ["megatron-core is"]
    assert [line.partition(" not installed")[0] for line in told["sglang"]] == [
        "megatron-core, sglang and slime-sglang are"
    ]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_samples_and_learns_by_it(plain: Site, tmp_path: Path) -> None:
    """What Megatron-core computes of the sampled tokens is what transformers' class said of them, of every version."""
    settings = {"rollout.backend": "plain"}
    run = Run(tmp_path, model="qwen3-tiny", settings=settings, environment={"PYTHONPATH": str(plain.folder)})
    run.start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert max(row["train/logprob_diff_max"] for row in steps) < 1e-4
    assert all(row["train/grad_norm"] > 0 for row in steps)
    assert [row["step"] for row in run.rows("rl") if "eval/reward_mean" in row] == [0, 2, 4]
    assert "======== Running on http://127.0.0.1:" in (run.path / "logs/engine-0.log").read_text(), "aiohttp says so"
