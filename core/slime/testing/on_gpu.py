"""Generation parity on a GPU: stock SGLang's log-probs of tokens it sampled against the trainer's for the same tokens.

Models are cut from published config.json files: a few layers, narrow, but with the published attention (number and
sizes of heads, ranks of latents, rotary embeddings, indexer) and routing (number of experts, groups, top-k), which are
what CUDA kernels depend on. All engines start at once and share the GPU.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from slime.config.hf import read_hf_config
from slime.config.schema import Device, Placement, SlimeConfig
from slime.contracts import HfConfig
from slime.rollout.client import EngineClient, Generation
from slime.rollout.engine import EngineProcess
from slime.testing.engines import LOCALHOST
from slime.testing.models import write_checkpoint
from slime.testing.ranks import Rank, run_ranks
from slime.types import TrainSample

MEAN_TOLERANCE, MAX_TOLERANCE = 0.03, 0.5
"""Nats, bf16 on both sides. Against an fp32 engine the trainer in bf16 is off by 0.010 (mean) and 0.17 (max): eight
bits for every activation, and where two experts score almost the same, rounding chooses. Two such errors are
independent: 0.015 and 0.25. A wrong scale, rotary order or stale tensor moves the mean by more than 0.3."""
SPARSE_MEAN_TOLERANCE, SPARSE_MAX_TOLERANCE = 0.2, 2.0
"""Beyond `index_topk`. The engine scores keys in fp8 (e4m3), the trainer in bf16, so of the keys near the threshold
they keep others: in fp32 that alone costs 0.09 (mean) and 0.7 (max) of a random model, whose keys all score alike."""
CONTROL = 1.5
"""Attending to all keys instead must cost so many times that, or the comparison could not tell; in fp32 2.6 times."""

NARROW: Mapping[str, int] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "q_lora_rank": 256,
    "vocab_size": 2048,
}
ENGINE: Mapping[str, Any] = {
    "dtype": "bfloat16",
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "context_length": 8192,
    "max_total_tokens": 16384,
    "max_running_requests": 8,
    "mem_fraction_static": 0.8,  # of what is free when it looks; the number of tokens bounds what it takes
    "cuda_graph_max_bs_decode": 8,
}
SPARSE_ENGINE: Mapping[str, Any] = {**ENGINE, "attention_backend": "dsa", "kv_cache_dtype": "bfloat16"}
PROMPT_LENGTHS, NUM_TOKENS = (7, 64, 300, 1000), 64
LONG_PROMPT_LENGTHS = (2000, 5000)
"""With `NUM_TOKENS` more, the first passes an `index_topk` of 2048 while it is decoded, the second while prefilled."""
WITHIN, BEYOND = "", "beyond index_topk"
BUCKET_BYTES = 64 << 20
_UNUSED = ("auto_map", "quantization_config")
START_TIMEOUT_S, RANK_TIMEOUT_S = 400.0, 200.0


class Agreement(NamedTuple):
    """One line of the table.

    Attributes:
        mean, max: of the absolute differences over `num_tokens` sampled tokens, in nats.
        in_fp8: the mean, had the trainer rounded index queries and keys as the engine does.
        control: the mean, had the trainer attended to all keys; both None where it does so anyway.
    """

    model: str
    family: str
    sequences: str
    num_tokens: int
    mean: float
    max: float
    in_fp8: float | None = None
    control: float | None = None

    def problem(self) -> str:
        """What is wrong with it, empty if nothing is."""
        sparse = self.control is not None
        mean, most = (SPARSE_MEAN_TOLERANCE, SPARSE_MAX_TOLERANCE) if sparse else (MEAN_TOLERANCE, MAX_TOLERANCE)
        if not (self.mean <= mean and self.max <= most):
            return f"{self.model}: log-probs {self.sequences} differ by {self.mean:.4f} (mean), {self.max:.3f} (max)"
        if self.control is not None and self.control < CONTROL * self.mean:
            return f"{self.model}: attending to all keys costs {self.control:.4f}, the choice itself {self.mean:.4f}"
        return ""


def check_on_gpu(published: Sequence[Path], scratch: Path) -> None:
    """What `compare_on_gpu` finds is within the tolerances."""
    rows = [row for rows in compare_on_gpu(published, scratch) for row in rows.result()]
    problems = [problem for row in rows if (problem := row.problem())]
    assert not problems, "; ".join(problems)


def compare_on_gpu(
    published: Sequence[Path], scratch: Path, *, device: Device = Device.cuda, engine: Mapping[str, Any] | None = None
) -> list[Future[list[Agreement]]]:
    """Serve and train a model cut from each published config.json, all at once.

    Random weights go from a checkpoint to the trainer and from there to the engine. Then the engine samples, and the
    trainer scores what it sampled, packed.

    Args:
        published: config.json files; their stems name the models.
        scratch: for checkpoints and logs.
        engine: fields of SGLang's `ServerArgs` on top of `ENGINE`.

    Returns:
        What was found of each model, or why nothing was; all have ended.
    """
    with ThreadPoolExecutor(len(published)) as pool:
        compare = partial(_compare, scratch=scratch, device=device, engine=engine or {})
        return [pool.submit(compare, path) for path in published]


def narrowed(published: Path, folder: Path) -> HfConfig:
    """Write a narrow model with the published one's attention and routing as `folder`/config.json, and return it.

    Where the heads are as wide as the model, which SGLang takes for granted of some families, it stays as wide. It has
    at least two layers behind the dense ones, or, where layers share their choice of keys, so many that some reuse a
    choice and a later one chooses again.
    """
    hf = json.loads(published.read_text())
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps(hf))
    num_layers = 8 if "index_topk" in hf else hf.get("first_k_dense_replace", 2) + 2
    cut = {key: value for key, value in read_hf_config(str(folder), num_layers).items() if key not in _UNUSED}
    width = cut["hidden_size"]
    as_wide = width == cut["num_attention_heads"] * cut.get("head_dim", 0)
    cut |= {key: value for key, value in NARROW.items() if key in cut}
    cut |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    cut |= {"hidden_size": width} if as_wide else {}
    file.write_text(json.dumps(cut, indent=2))
    return cut


def _compare(published: Path, *, scratch: Path, device: Device, engine: Mapping[str, Any]) -> list[Agreement]:
    folder = scratch / published.stem
    hf = narrowed(published, folder / "config")
    cfg = _config(hf, folder, device, engine)
    process = EngineProcess(cfg, model_path=folder / "config", host=LOCALHOST, log=folder / "engine.log")
    with ThreadPoolExecutor(1) as starter:  # the checkpoint is written while the engine starts
        started = starter.submit(process.start)
        try:
            write_checkpoint(hf, folder / "weights", dtype=torch.bfloat16 if device is Device.cuda else torch.float32)
            (folder / "weights/config.json").write_text(json.dumps(hf))
            started.result()
            [rows] = run_ranks(agreements, 1, cfg, process.url, published.stem, timeout_s=RANK_TIMEOUT_S)
        finally:
            started.exception()
            process.stop()
    return [Agreement(*row) for row in rows]


def _config(hf: HfConfig, folder: Path, device: Device, engine: Mapping[str, Any]) -> SlimeConfig:
    cfg = SlimeConfig()
    cfg.cluster.device, cfg.cluster.placement = device, Placement.disaggregated
    cfg.cluster.start_timeout_s = START_TIMEOUT_S
    cfg.model.family, cfg.model.path = hf["model_type"], str(folder / "weights")
    cfg.train.megatron = {"bf16": device is Device.cuda}
    cfg.rollout.sglang = {**(SPARSE_ENGINE if "index_topk" in hf else ENGINE), **engine}
    return cfg


def agreements(rank: Rank, cfg: SlimeConfig, url: str, model: str) -> list[tuple[Any, ...]]:
    """Fields of `Agreement`s. Runs in a rank of its own: the trainer's part."""
    from slime.train.trainer import Trainer
    from slime.weights.bucket import CudaBucket, SharedBucket
    from slime.weights.publish import publish

    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    kind = CudaBucket if cfg.cluster.device is Device.cuda else SharedBucket
    publish(trainer.export(), [url], 1, BUCKET_BYTES, bucket_type=partial(kind, device=trainer.device))
    rows = []
    for sequences, prompts in _prompts(trainer.hf).items():
        samples = asyncio.run(_sample(url, prompts))
        found = _differences(trainer, samples)
        others = _counterfactuals(trainer, samples) if sequences == BEYOND else ()
        rows.append((model, cfg.model.family, sequences, len(found), float(found.mean()), float(found.max()), *others))
    return rows


def _counterfactuals(trainer: Any, samples: Sequence[TrainSample]) -> tuple[float, float]:
    """`in_fp8` and `control` of an `Agreement`."""
    from slime.train.specs import indexer

    config, exact = trainer.model.config, indexer.index_scores

    def rounded(queries: Any, keys: torch.Tensor, horizon: int) -> torch.Tensor:
        return exact(indexer.IndexQueries(_in_fp8(queries.vectors), queries.weights), _in_fp8(keys), horizon)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "index_scores", rounded)
        in_fp8 = float(_differences(trainer, samples).mean())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "dsa_indexer_topk", max(len(sample.tokens) for sample in samples))
        return in_fp8, float(_differences(trainer, samples).mean())


def _in_fp8(vectors: torch.Tensor) -> torch.Tensor:
    """[..., d] as SGLang's fused indexer kernels round them: each vector scaled to the largest number of e4m3."""
    scales = vectors.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / torch.finfo(torch.float8_e4m3fn).max
    return ((vectors.float() / scales).to(torch.float8_e4m3fn).float() * scales).to(vectors.dtype)


def _prompts(hf: HfConfig) -> dict[str, list[list[int]]]:
    """Random tokens, of sequences that attend to all keys, and of those that are too long for it."""
    lengths = {WITHIN: PROMPT_LENGTHS} | ({BEYOND: LONG_PROMPT_LENGTHS} if "index_topk" in hf else {})
    generator = np.random.default_rng(0)
    return {
        kind: [generator.integers(1, hf["vocab_size"], length).tolist() for length in of_kind]
        for kind, of_kind in lengths.items()
    }


async def _sample(url: str, prompts: Sequence[list[int]]) -> list[TrainSample]:
    client = EngineClient(url)
    sampling = {"max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    try:
        answers = await asyncio.gather(*(client.generate(prompt, sampling) for prompt in prompts))
    finally:
        await client.close()
    return [_train_sample(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]


def _train_sample(prompt: list[int], answer: Generation) -> TrainSample:
    assert answer.weight_version == 1
    assert len(answer.tokens) == NUM_TOKENS
    return TrainSample(
        tokens=np.array([*prompt, *answer.tokens]),
        loss_mask=np.ones(NUM_TOKENS, np.float32),
        advantages=np.ones(NUM_TOKENS, np.float32),
        rollout_logprobs=np.array(answer.logprobs, np.float32),
    )


def _differences(trainer: Any, samples: Sequence[TrainSample]) -> torch.Tensor:
    """[tokens]: absolute differences between the trainer's and the engine's log-probs of the sampled tokens."""
    from slime.train.compat import cpu_stands_in_for_cuda
    from slime.train.local_batch import local_micro_batches
    from slime.train.packing import pack
    from slime.train.step import score

    cfg = trainer.cfg
    num_tokens = sum(len(sample.tokens) for sample in samples)
    packing = {"align": trainer.packing_align, "max_tokens": num_tokens, "loss_mean": cfg.algo.loss_mean}
    [batch] = pack(samples, num_dp=1, **packing)
    micro_batches = local_micro_batches(batch, trainer.device)
    with cpu_stands_in_for_cuda():
        scores = score(trainer.model, micro_batches)
    return torch.cat([_apart(*pair) for pair in zip(scores, micro_batches, strict=True)]).cpu()


def _apart(scores: torch.Tensor, micro: Any) -> torch.Tensor:
    differences: torch.Tensor = scores[0] - micro.rollout_logprobs
    return differences[micro.loss_mask > 0].abs().float()
