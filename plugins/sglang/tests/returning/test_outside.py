"""Servers of others as engines, without a run around them; with one: `tests/test_run_outside.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from slime.compose.compose import examine
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, reserved_port
from slime_sglang.returning import outside
from slime_sglang.returning.outside import OutsideEngines

Config = Callable[..., SlimeConfig]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """The laptop's run with these servers, one key, and further words."""

    def make(servers: Sequence[Endpoint | str], *words: str) -> SlimeConfig:
        urls = [getattr(server, "url", server) for server in servers]
        monkeypatch.setenv("SLIME_ENGINE_KEY", next((each.key for each in servers if isinstance(each, Endpoint)), ""))
        beside = ["rollout.sglang.enable_deterministic_inference=false", f"weights.path={tmp_path}/weights", *words]
        addresses = f"rollout.addresses=[{','.join(urls)}]"
        composed = examine(["+model=glm4-tiny", "+cluster=local", addresses, *beside])
        assert composed.problems == []
        return composed.cfg

    return make


def test_where_none_answers_the_run_ends_by_name(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "WATCH_S", 0.01)
    with reserved_port(LOOPBACK) as port:
        cfg = config([f"http://{LOOPBACK}:{port}"], "cluster.start_timeout_s=1")
        said = rf"rollout.addresses: no server of 1 has answered for 1 s .*engine http://{LOOPBACK}:{port}: is not r"
        with pytest.raises(SlimeError, match=said):
            OutsideEngines(cfg, lambda event: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollout.sglang.dtype=bfloat16"], "dtype is float32, rollout.sglang.dtype is bfloat16"),
        (["rollout.sampling.stop=[Q]"], r"has no tokenizer \(skip_tokenizer_init\), which stop strings need"),
        (["+model=glm4-moe-tiny"], "its model's model_type is glm4, the trained one's glm4_moe; its model's archi"),
        (["rollout.max_prompt_tokens=3000"], "takes sequences of at most"),
    ],
)
def test_a_server_that_differs_is_refused(config: Config, endpoint: Endpoint, words: list[str], said: str) -> None:
    assert OutsideEngines(config([endpoint]), lambda event: None), "the control"
    with pytest.raises(SlimeError, match=rf"^engine {endpoint}: {said}"):
        OutsideEngines(config([endpoint], *words), lambda event: None)


@pytest.mark.slow
def test_a_server_that_is_another_version_or_has_another_tokenizer_differs(config: Config, endpoint: Endpoint) -> None:
    wanted = OutsideEngines(config([endpoint]), lambda event: None)._wanted
    info = {"version": wanted._version, "disaggregation_mode": "null", "speculative_algorithm": None}
    info |= {"dtype": "float32", "enable_deterministic_inference": False}
    info |= {"skip_tokenizer_init": False, "tokens": wanted._tokens, "tokenizer_path": "here"}
    model = {**wanted._model, "is_generation": True}
    assert wanted.differences(info, model) == []
    for other, said in (
        ({"version": "0.4.1"}, f"is SGLang 0.4.1, the run has {wanted._version}"),
        ({"tokens": [1, 2]}, "has another tokenizer (here)"),
        ({"disaggregation_mode": "decode"}, "works in pairs (disaggregation_mode is decode)"),
        ({"speculative_algorithm": "EAGLE"}, "drafts tokens (speculative_algorithm is EAGLE)"),
    ):
        assert wanted.differences({**info, **other}, model) == [said]
