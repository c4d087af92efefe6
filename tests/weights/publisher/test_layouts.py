"""Engines whose ranks share attention and experts in other ways than tensor parallelism: every shard holds what was
published, and what is asked of an engine reaches all of its ranks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing import models
from slime_testing.engines import as_exported, running_engine
from slime_testing.publishing import publish
from tests.transports import BUCKET, LIMIT_S, publish_by_rank
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

PROMPT = [5, 6, 7, 9, 11]
TOLERANCE = 1e-5
"""Nats, fp32 on both sides: the sums run in another order; seen are 2e-6."""
VICTIM = "model.layers.1.mlp.experts.0.up_proj.weight"
DATA_PARALLEL = {
    "tp_size": 2,
    "dp_size": 2,
    "enable_dp_attention": True,
    "enable_dp_lm_head": True,
    "moe_dense_tp_size": 1,
}
EXPERT_PARALLEL = {"tp_size": 2, "ep_size": 2}


@dataclass
class Served:
    """An engine of several ranks, and the model that it was last given."""

    engine: EngineProcess
    folder: Path
    model: Any = None
    version: int = 0
    requests: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(8))

    def publish(self) -> None:
        """Another model each time: the first goes in by the engine's loader, later ones are replayed."""
        self.version += 1
        self.model = models.random_model(read_hf_config(str(self.folder)), seed=self.version).eval()
        receipt = publish(iter(self.tensors().items()), [self.engine.endpoint], self.version, BUCKET)
        assert receipt.num_tensors == len(self.tensors())

    def tensors(self) -> dict[str, torch.Tensor]:
        return as_exported(self.model, self.folder)

    def generate(self, rank: int | None, num_tokens: int = 16, **sampling: Any) -> dict[str, Any]:
        """SGLang's `meta_info` of a request to one of its data-parallel ranks."""
        sampling = {"max_new_tokens": num_tokens, "ignore_eos": True, **sampling}
        body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, "routed_dp_rank": rank}
        meta: dict[str, Any] = self.ask("/generate", body)["meta_info"]
        return meta

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = self.engine.endpoint.headers | {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.engine.endpoint}{path}", data, headers)) as answer:
            text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text

    @torch.no_grad()
    def check_parity(self, rank: int | None) -> None:
        """What a rank generates greedily is what transformers would, with its log-probs."""
        meta = self.generate(rank, temperature=0.0)
        assert meta["weight_version"] == str(self.version)
        logits = self.model(torch.tensor([PROMPT + tokens(meta)])).logits[0, len(PROMPT) - 1 : -1]
        wanted = logits.log_softmax(-1).max(-1)
        assert tokens(meta) == wanted.indices.tolist()
        torch.testing.assert_close(torch.tensor(logprobs(meta)), wanted.values, atol=TOLERANCE, rtol=0)


def tokens(meta: Mapping[str, Any]) -> list[int]:
    return [token for _, token, _ in meta["output_token_logprobs"]]


def logprobs(meta: Mapping[str, Any]) -> list[float]:
    return [logprob for logprob, _, _ in meta["output_token_logprobs"]]


@contextmanager
def served(model: str, tmp_path: Path, **fields: Any) -> Iterator[Served]:
    folder = resolve(f"pkg://slime_plugin_glm4/assets/{model}")
    with running_engine(folder, tmp_path / "engine.log", sleep_on_idle=True, **fields) as engine:
        it = Served(engine, folder)
        it.publish()
        yield it


def check_faults(it: Served) -> None:
    """A shard that is damaged on one rank, or gets nothing, is named by the tensor, and mended by the next version."""
    with pytest.raises(SlimeError, match=f"'{VICTIM}' arrived with digest") as raised:
        publish_by_rank(it.tensors(), it.engine.endpoint, it.version + 1, damaged=VICTIM)
    assert raised.value.what.count(VICTIM) == 1, "said once, not by every rank"
    rest = {name: tensor for name, tensor in it.tensors().items() if name != VICTIM}
    with pytest.raises(SlimeError, match=f"missing {VICTIM}"):
        publish(iter(rest.items()), [it.engine.endpoint], it.version + 2, BUCKET)
    it.publish()


def test_data_parallel_attention(tmp_path: Path) -> None:
    """Attention, embedding, output head and dense layers lie on both ranks, a half of every expert on each."""
    with served("glm4-moe-tiny", tmp_path, **DATA_PARALLEL) as it:
        drawn = [tokens(it.generate(rank)) for rank in (0, 1)]
        assert drawn[0] != drawn[1], "the ranks draw with the same noise"
        for rank in (0, 1):
            it.check_parity(rank)
        check_faults(it)
        check_control(it)
        for rank in (0, 1):
            it.check_parity(rank)


def check_control(it: Served) -> None:
    """Flush, pause, release and resume concern every data-parallel rank."""
    long = it.requests.submit(it.generate, 1, 400)
    wait_for(it, [0, 1])
    with pytest.raises(urllib.error.HTTPError) as refused:  # the first rank has nothing to wait for
        it.ask("/flush_cache?timeout=0.1", {})
    assert "Timed out" in refused.value.read().decode()
    others = [it.requests.submit(it.generate, rank, 400) for rank in (0, 0, 1)]
    wait_for(it, [2, 2])
    it.ask("/pause_generation", {"mode": "abort"})
    ends = [request.result(LIMIT_S)["finish_reason"]["type"] for request in (long, *others)]
    assert ends == ["abort"] * 4
    it.publish()
    it.ask("/continue_generation", {})
    it.ask("/flush_cache?timeout=20", {})
    it.engine.release_memory(["kv_cache", "weights"])
    it.engine.resume_memory(["kv_cache", "weights"])
    it.publish()


def wait_for(it: Served, running: list[int]) -> None:
    """Until each data-parallel rank has so many requests."""

    def now() -> list[int]:
        return [rank["num_running_reqs"] for rank in it.ask("/v1/loads?include=core")["loads"]]

    until(lambda: now() == running, told=now)


def test_expert_parallelism(tmp_path: Path) -> None:
    """Half of the experts on each rank, and half of the attention heads; the router's fp32 correction bias and a dense
    first layer on both."""
    with served("glm4-moe-tiny", tmp_path, **EXPERT_PARALLEL) as it:
        it.check_parity(None)
        check_faults(it)
        it.check_parity(None)


def test_latent_attention_with_all_of_it(tmp_path: Path) -> None:
    """Ten physical experts of eight: the second rank has a copy of the first rank's first two, VICTIM's among them.

    A request with a seed gets the same bits from every rank, whatever the others do meanwhile: a run that resumes may
    meet another rank.
    """
    fields = {**DATA_PARALLEL, **EXPERT_PARALLEL, "ep_num_redundant_experts": 2, "enable_deterministic_inference": True}
    with served("glm4-moe-lite-tiny", tmp_path, **fields) as it:
        for rank in (0, 1):
            it.check_parity(rank)
        check_faults(it)
        alone = [it.generate(rank, 32, sampling_seed=3) for rank in (0, 1)]
        beside = [it.requests.submit(it.generate, rank, 24, sampling_seed=7 + rank) for rank in (0, 0, 1)]
        together = [it.generate(rank, 32, sampling_seed=3) for rank in (0, 1)]
        assert all(request.result(60) for request in beside)
        first, *others = [(tokens(meta), logprobs(meta)) for meta in (*alone, *together)]
        assert others == [first] * 3
        for rank in (0, 1):
            it.check_parity(rank)
