"""Generation parity: a real SGLang engine on this machine's CPU against transformers' class of the family."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from slime.config.hf import QUANTIZATION, read_hf_config
from slime.config.paths import resolve
from slime.config.schema import Device
from slime.engine_client.client import Completion
from slime.engines.software import software
from slime.net import Endpoint
from slime.topology.quantization import WeightFormat
from slime.weights.quantized import Quantizer, parts_of, quantized, quantizer_of
from slime_testing import models
from slime_testing.engines import as_exported, hf_tensors, running_engine
from slime_testing.publishing import TIMEOUT_S, publish

TOLERANCE = 1e-5
"""Nats, fp32 on both sides: the sums run in another order, which costs about 1e-6; a stale tensor costs more than 1."""
PROMPT = [5, 6, 7, 9, 11]
NUM_TOKENS = 24
BUCKET_BYTES = 1 << 12
"""Small: most tensors go alone, but what the engine's loader fuses must come together nevertheless."""


def check_generation(
    folder: str,
    scratch: Path,
    *,
    tolerance: float = TOLERANCE,
    dtype: torch.dtype = torch.float32,
    form: WeightFormat | None = None,
    **sglang: Any,
) -> float:
    """Publish random weights twice; after each, log-probs of sampled tokens equal transformers' within `tolerance`.

    The first goes in by SGLang's loader, the second by what was learnt from it. That one shows too that what the
    engine derived from the first one's weights is derived again.

    Args:
        folder: HF folder with config.json and tokenizer; the weights are made here.
        scratch: where the engine's log goes.
        dtype: of the weights and of what the engine computes; transformers computes in fp32 with the same weights.
        form: how the engine holds the weights; transformers then computes with them dequantised.
        sglang: fields of SGLang's `ServerArgs`.

    Returns:
        The largest difference.
    """
    hf, path = read_hf_config(folder), resolve(folder)
    differences = []
    quantizer = quantizer_of(form) if form else None
    if form:
        sglang["json_model_override_args"] = json.dumps({QUANTIZATION: form.to_config()})
    with running_engine(path, scratch / "engine.log", dtype=str(dtype).removeprefix("torch."), **sglang) as engine:
        for version in (1, 2):
            model = models.random_model(hf, seed=version).eval()
            for name, tensor in model.state_dict(keep_vars=True).items():
                tensor.data = models.in_checkpoint(name, tensor.data, dtype).float()
            exported = as_exported(model, folder)
            exported = {name: models.in_checkpoint(name, each, dtype) for name, each in exported.items()}
            if quantizer:
                exported = dict(quantized(exported.items(), quantizer))
                hold(model, exported, quantizer)
            receipt = publish(iter(exported.items()), [engine.endpoint], version, BUCKET_BYTES)
            assert receipt.num_tensors == len(exported)
            completion = generate(engine.endpoint)
            assert completion.weight_version == version
            differences.append(difference(model, completion))
    known = re.search(r"Version 2: (\d+) of (\d+) buckets were replayed", (scratch / "engine.log").read_text())
    assert known, "the engine did not log the second version"
    assert known[1] == known[2], known[0]
    assert max(differences) <= tolerance, f"the engine's log-probs are off by {differences}"
    return max(differences)


@torch.no_grad()
def hold(model: torch.nn.Module, published: Mapping[str, torch.Tensor], quantizer: Quantizer) -> None:
    """Give a transformers model the values of the weights that were published quantised."""
    for name, tensor in hf_tensors(model):
        if quantizer.form.is_quantized(name, tensor.shape) and name in published:
            parts = [published[part] for part, _ in parts_of(quantizer.form, name, tensor.shape)]
            tensor.copy_(quantizer.dequantize(parts, tensor.dtype))


def generate(engine: Endpoint) -> Completion:
    """What an engine samples behind `PROMPT`: `NUM_TOKENS` tokens."""

    async def ask() -> Completion:
        client = software(Device.cpu).client(engine, TIMEOUT_S)
        try:
            return await client.generate(PROMPT, {"max_new_tokens": NUM_TOKENS, "ignore_eos": True})
        finally:
            await client.close()

    return asyncio.run(ask())


@torch.no_grad()
def difference(model: torch.nn.Module, completion: Completion) -> float:
    """The largest one, in nats, between the log-probs of `generate` and those of transformers' model."""
    tokens = torch.tensor([*PROMPT, *completion.tokens])
    logits = model(tokens[None]).logits[0, len(PROMPT) - 1 : -1]
    wanted = logits.log_softmax(-1).gather(1, tokens[len(PROMPT) :, None])[:, 0]
    return float((torch.tensor(completion.logprobs) - wanted).abs().max())
