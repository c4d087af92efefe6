import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slime.compose.objective import objective_problems
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.config.schema import AlgoConfig, SamplingConfig
from slime.data.tokenize import load_tokenizer
from slime.engine_client.engine_set import EngineSet
from slime.net import Endpoint
from slime.objective import Column, Metrics, TrainsOn
from slime.plugins import load
from slime.sampling.generate import Generator
from slime.sampling.samples import compare, with_numbers
from slime.segments import Segment
from slime.topology.recordings import numbers_told
from slime.types import Group, Prompt, Sample, Status, Verdict
from slime_sglang.engine.driver.client import SGLangClient
from slime_testing import models
from slime_testing.engines import as_exported, running_engine
from slime_testing.publishing import publish

TINY = "pkg://slime_plugin_glm4/assets/glm4-tiny"
PROMPT = Prompt("0/1", (), tuple(range(20, 33)))
TEMPERATURE = 0.7


async def generated(engine: Endpoint) -> list[Segment]:
    """Two responses that come at once; one that goes on behind what a program wrote; and one in two requests."""
    client = SGLangClient(engine)
    sampling = SamplingConfig(max_response_tokens=200, temperature=TEMPERATURE)
    generator = Generator(EngineSet([client]), sampling, load_tokenizer(resolve(TINY)), recordings=numbers_told())
    try:
        segments = [Segment(PROMPT.tokens) for _ in range(4)]
        await asyncio.gather(*(generator.continue_response(one, 0, 12, 1, seed=n) for n, one in enumerate(segments)))
        spoken = segments[1]
        spoken.write([60, 61, 62])
        begun = len(spoken.tokens)
        await generator.continue_response(spoken, begun, begun + 9, 1, seed=7)
        await generator.continue_response(segments[2], 0, len(segments[2].tokens) + 9, 1, seed=8)
        return segments
    finally:
        await client.close()


@pytest.mark.slow
def test_it_is_what_transformers_says_of_the_engine_s_tokens(tmp_path: Path) -> None:
    """fp32 in the engine, float64 here: some 1e-6 of a probability."""
    hf = read_hf_config(TINY)
    model = models.random_model(hf, seed=3).eval()
    with running_engine(resolve(TINY), tmp_path / "engine.log", skip_tokenizer_init=True) as engine:
        publish(iter(as_exported(model, TINY).items()), [engine.endpoint], 1, 1 << 16)
        segments = asyncio.run(generated(engine.endpoint))
    done = [
        Sample(PROMPT, number, [segment], Status.COMPLETED, verdict=Verdict.of(float(number)))
        for number, segment in enumerate(segments)
    ]
    names = [each.name for each in numbers_told()]
    samples, means = with_numbers(compare([Group(PROMPT, done)], 2, 1, None).sequences, names)
    model, wanted = model.double(), []
    for sample in samples:
        with torch.no_grad():
            logits = model(torch.from_numpy(sample.tokens)[None]).logits[0, :-1][-sample.num_response_tokens :]
        largest = (logits / TEMPERATURE).softmax(-1).amax(-1).numpy() * sample.loss_mask
        np.testing.assert_allclose(sample.columns["top1_prob"], largest, atol=1e-5)
        assert not sample.recorded, "nothing of it is for layers"
        wanted += largest[sample.loss_mask != 0].tolist()
    assert [int(sample.loss_mask.sum()) for sample in samples][1] < samples[1].num_response_tokens
    assert np.std(wanted) > 1e-3, "tokens differ"
    assert means == {"rollout/top1_prob": pytest.approx(np.mean(wanted), abs=1e-5)}


class Reads:
    """An objective, as far as a plan asks."""

    trains_on = TrainsOn.rollouts
    needs = (Column("top1_prob"),)

    def metrics(self, columns: Collection[str]) -> Metrics:
        return Metrics(("loss",))

    def loss(self, scores: Any, inputs: Any) -> Any:
        raise NotImplementedError  # a plan calls no loss


def test_an_objective_may_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime.compose.objective.objective_of", lambda _: Reads())
    assert list(objective_problems(AlgoConfig(), load())) == []
    monkeypatch.setattr(Reads, "needs", (Column("top1_porb"),))
    [problem] = objective_problems(AlgoConfig(), load())
    assert "reads column 'top1_porb', which rollouts do not have. Did you mean 'top1_prob'?" in str(problem)
