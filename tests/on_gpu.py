"""Generation parity on a GPU: stock SGLang's log-probs of tokens it sampled against the trainer's for the same tokens.

Models are cut from published config.json files: a few layers, narrow, but with the published attention (number and
sizes of heads, ranks of latents, rotary embeddings, indexer) and routing (number of experts, groups, top-k), which are
what CUDA kernels depend on. All engines start at once and share the GPU.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.config.hf import NUM_LAYERS, read_hf_config
from slime.config.schema import Device, Placement, SlimeConfig
from slime.models.bridge import HfConfig
from slime.net import LOOPBACK, Endpoint
from slime.topology.quantization import weight_format
from slime.topology.recordings import recordings_of
from slime.topology.topology import read_topology
from slime.types import ROLLOUT_LOGPROBS, TrainSample
from slime.weights.quantized import Quantizer, parts_of, quantized, quantizer_of
from slime_megatron.fp8_block.blocks import E4M3
from slime_sglang.engine.driver.process import EngineProcess
from slime_testing.engines import cpu_config
from slime_testing.models import write_checkpoint
from slime_testing.ranks import Rank, run_ranks
from tests.agreement import FEW, FEWER, Agreement
from tests.sampled import BEYOND, VERSION, prompts_of, sample
from weight_buckets.views import Named

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
BUCKET_BYTES = 64 << 20
_UNUSED = ("auto_map", "quantization_config")
START_TIMEOUT_S, RANK_TIMEOUT_S = 400.0, 250.0


def check_on_gpu(published: Sequence[Path], scratch: Path, *, fp8: str | None = None) -> None:
    """What `compare_on_gpu` finds is within the tolerances."""
    rows = [row for rows in compare_on_gpu(published, scratch, fp8=fp8) for row in rows.result()]
    problems = [problem for row in rows if (problem := row.problem())]
    assert not problems, "; ".join(problems)


def compare_on_gpu(
    published: Sequence[Path],
    scratch: Path,
    *,
    device: Device = Device.cuda,
    engine: Mapping[str, Any] | None = None,
    fp8: str | None = None,
    round_trained: bool = True,
    routing: bool = False,
    widths: Mapping[str, int] | None = None,
    fp32_lm_head: bool = False,
    batch_invariant: bool = False,
) -> list[Future[list[Agreement]]]:
    """Serve and train a model cut from each published config.json, all at once.

    Random weights go from a checkpoint to the trainer and from there to the engine, as its second version: what the
    engine derived from the first, other weights, it must derive again. Then the engine samples, and the trainer scores
    what it sampled, packed.

    Args:
        published: config.json files; their folders name the models.
        scratch: for checkpoints and logs.
        engine: fields of SGLang's `ServerArgs` on top of `ENGINE`.
        fp8: `rollout.fp8`; rows are then by cause.
        round_trained: the trainer's weights are then such that E4M3 loses nothing of them, so that what remains is what
            the engine computes: GPUs quantise activations too.
        routing: `observe.routing`: of mixtures of experts, rows are by what the engine's experts explain.
        widths: fields of config.json on top of `NARROW`.
        fp32_lm_head, batch_invariant: `model.fp32_lm_head` and `model.batch_invariant`.

    Returns:
        What was found of each model, or why nothing was; all have ended.
    """
    with ThreadPoolExecutor(len(published)) as pool:
        of_run = {"device": device, "engine": engine or {}, "fp8": fp8, "rounds": round_trained, "routing": routing}
        of_run |= {"fp32_lm_head": fp32_lm_head, "batch_invariant": batch_invariant}
        compare = partial(_compare, scratch=scratch, widths=widths or {}, **of_run)
        compared = [pool.submit(compare, path) for path in published]
        wait(compared)  # no thread ends before: without CUDA one of them has started the server that forks all ranks
        return compared


def narrowed(published: Path, folder: Path, widths: Mapping[str, int] | None = None) -> HfConfig:
    """Write a narrow model with the published one's attention and routing as `folder`/config.json, and return it; with
    `widths` in place of some of `NARROW`.

    Where the heads are as wide as the model, which SGLang takes for granted of some families, it stays as wide. It has
    at least two layers behind the dense ones, or, where layers share their choice of keys, so many that some reuse a
    choice and a later one chooses again; or as many as `widths` says.
    """
    hf = json.loads(published.read_text())
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps(hf))
    num_layers = (widths or {}).get(NUM_LAYERS) or (8 if "index_topk" in hf else hf.get("first_k_dense_replace", 2) + 2)
    cut = {key: value for key, value in read_hf_config(str(folder), num_layers).items() if key not in _UNUSED}
    width = cut["hidden_size"]
    as_wide = width == cut["num_attention_heads"] * cut.get("head_dim", 0)
    cut |= {key: value for key, value in {**NARROW, **(widths or {})}.items() if key in cut}
    cut |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    cut |= {"hidden_size": width} if as_wide else {}
    file.write_text(json.dumps(cut, indent=2))
    return cut


def _compare(
    published: Path,
    *,
    scratch: Path,
    widths: Mapping[str, int],
    device: Device,
    engine: Mapping[str, Any],
    fp8: str | None,
    rounds: bool,
    routing: bool,
    fp32_lm_head: bool,
    batch_invariant: bool,
) -> list[Agreement]:
    folder = scratch / published.parent.name
    hf = narrowed(published, folder / "config", widths)
    cfg = setup(hf, folder, device, engine)
    cfg.rollout.fp8, cfg.observe.routing = fp8, routing and "num_experts_per_tok" in hf
    cfg.model.fp32_lm_head, cfg.model.batch_invariant = fp32_lm_head, batch_invariant
    (folder / "weights").mkdir()
    (folder / "weights/config.json").write_text(json.dumps(hf))
    process = EngineProcess(read_topology(cfg), host=LOOPBACK, log=folder / "engine.log")
    with ThreadPoolExecutor(1) as starter:  # the checkpoint is written while the engine starts
        started = starter.submit(process.start)
        try:
            write_checkpoint(hf, folder / "weights", dtype=torch.bfloat16)
            if (form := weight_format(cfg.model, cfg.rollout)) and rounds:
                _round(folder / "weights", quantizer_of(form))
            (folder / "weights/config.json").write_text(json.dumps(hf))  # as it was, not as transformers writes it
            started.result()
            [rows] = run_ranks(agreements, 1, cfg, process.endpoint, published.parent.name, timeout_s=RANK_TIMEOUT_S)
        finally:
            started.exception()
            process.stop()
    return [Agreement(*row) for row in rows]


def _round(folder: Path, quantizer: Quantizer) -> None:
    """Make the weights of a checkpoint those that an engine computes with, which quantise to the same again."""
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        rounded = dict(quantized(tensors.items(), quantizer))
        for name, tensor in tensors.items():
            if quantizer.form.is_quantized(name, tensor.shape):
                parts = [rounded[part] for part, _ in parts_of(quantizer.form, name, tensor.shape)]
                tensors[name] = quantizer.dequantize(parts, tensor.dtype)
        save_file(tensors, file, metadata={"format": "pt"})


def setup(hf: HfConfig, folder: Path, device: Device, engine: Mapping[str, Any]) -> SlimeConfig:
    """One trainer rank and one engine with the fields `engine`, for the checkpoint in `folder`/weights."""
    cfg = SlimeConfig()
    cfg.cluster.device, cfg.cluster.placement = device, Placement.disaggregated
    cfg.cluster.start_timeout_s = START_TIMEOUT_S
    cfg.model.family, cfg.model.path = hf["model_type"], str(folder / "weights")
    of_gpus = SPARSE_ENGINE if "index_topk" in hf else ENGINE
    cfg.rollout.sglang = {**(of_gpus if device is Device.cuda else cpu_config().rollout.sglang), **engine}
    cfg.cluster.devices_per_node = 2  # one for each, as the plan counts them
    cfg.train.megatron = {"bf16": cfg.rollout.sglang["dtype"] == "bfloat16"}
    return cfg


def agreements(rank: Rank, cfg: SlimeConfig, engine: Endpoint, model: str) -> list[tuple[Any, ...]]:
    """Fields of `Agreement`s. Runs in a rank of its own: the trainer's part."""
    from slime_megatron.train.trainer import Trainer
    from slime_testing.publishing import publish
    from weight_buckets.bucket import CudaBucket, SharedBucket

    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    kind = partial(CudaBucket if cfg.cluster.on_gpus else SharedBucket, device=trainer.device)
    form = weight_format(cfg.model, cfg.rollout)
    quantizer = quantizer_of(form) if form else None
    publish(_others(trainer.export(quantizer=quantizer)), [engine], 1, BUCKET_BYTES, bucket_type=kind)
    recordings = recordings_of(cfg)
    asyncio.run(sample(engine, [[1, 2, 3]], recordings, version=1))
    publish(trainer.export(quantizer=quantizer), [engine], VERSION, BUCKET_BYTES, bucket_type=kind)
    exact, prompts = _in_fp32(trainer), prompts_of(trainer.hf)
    samples = {kind: asyncio.run(sample(engine, of_kind, recordings)) for kind, of_kind in prompts.items()}
    return [(model, cfg.model.family, *_compared(trainer, exact, *of_kind)) for of_kind in samples.items()]


def _others(tensors: Iterator[Named]) -> Iterator[Named]:
    """Weights that a model answers otherwise with."""
    for name, tensor in tensors:
        plain = tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor  # which torch does not flip everywhere
        yield name, plain.flip(0).view(tensor.dtype)


def _compared(trainer: Any, exact: Any, sequences: str, samples: Sequence[TrainSample]) -> tuple[Any, ...]:
    """Fields of an `Agreement` from `sequences` on. `exact` is the trainer's model in fp32."""
    chosen = sequences == BEYOND
    with _keys_as_in_engine() if chosen else nullcontext():
        errors = _errors(trainer, trainer.model, samples)
        rounding = (errors - _errors(trainer, exact, samples)).abs()
        causes = _causes(trainer, samples)
    apart = errors.abs()
    values = [apart.mean(), apart.quantile(FEW), apart.max(), rounding.mean(), rounding.quantile(FEWER)]
    return sequences, len(apart), *map(float, values), causes, *(_other_keys(trainer, samples) if chosen else ())


def _causes(trainer: Any, samples: Sequence[TrainSample]) -> dict[str, float]:
    """What the alarm of a run would name; empty without FP8 and `observe.routing`."""
    from megatron_core_portable import cpu_stands_in_for_cuda

    with cpu_stands_in_for_cuda():
        found: dict[str, float] = trainer.explain(_micro_batches(trainer, samples))
    return {name.removeprefix("gap/"): value for name, value in found.items()}


def _in_fp32(trainer: Any) -> Any:
    """The model of the same checkpoint, as `slime_megatron.train.megatron.build` makes it."""
    from slime import plugins
    from slime.config.paths import resolve
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.load import load_hf

    cfg = copy.deepcopy(trainer.cfg)
    cfg.train.megatron["bf16"] = False
    model = megatron.build(cfg, plugins.load().models.create(cfg.model.family), trainer.hf)
    load_hf(model.modules, trainer.mapping, resolve(cfg.model.path))
    return model


@contextmanager
def _keys_as_in_engine() -> Iterator[None]:
    """The trainer rounds index queries and keys as the engine does."""
    from slime_megatron.sparse_attention import indexer

    exact = indexer.index_scores

    def rounded(queries: Any, keys: torch.Tensor, horizon: int) -> torch.Tensor:
        return exact(indexer.IndexQueries(_in_fp8(queries.vectors), queries.weights), _in_fp8(keys), horizon)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "index_scores", rounded)
        yield


def _other_keys(trainer: Any, samples: Sequence[TrainSample]) -> tuple[float, float]:
    """`own_keys` and `control` of an `Agreement`."""
    own = _errors(trainer, trainer.model, samples)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.model.config, "dsa_indexer_topk", max(len(sample.tokens) for sample in samples))
        every = _errors(trainer, trainer.model, samples)
    return float(own.abs().mean()), float(every.abs().mean())


def _in_fp8(vectors: torch.Tensor) -> torch.Tensor:
    """[..., d] as SGLang's fused indexer kernels round them: each vector scaled to the largest number of e4m3."""
    scales = vectors.float().abs().amax(-1, keepdim=True).clamp(min=1e-4) / torch.finfo(torch.float8_e4m3fn).max
    return ((vectors.float() / scales).to(torch.float8_e4m3fn).float() * scales).to(vectors.dtype)


def _errors(trainer: Any, model: Any, samples: Sequence[TrainSample]) -> torch.Tensor:
    """[tokens]: the log-probs of the sampled tokens by a model of the trainer's ranks, less the engine's; with its own
    experts."""
    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime_megatron.train.step import score

    micro_batches = _micro_batches(trainer, samples)
    with cpu_stands_in_for_cuda():
        scores = score(model, micro_batches, replays=False)
    return torch.cat([_of_sampled(*pair) for pair in zip(scores, micro_batches, strict=True)]).cpu()


def _micro_batches(trainer: Any, samples: Sequence[TrainSample]) -> Any:
    """All in one."""
    from slime.train.packing import pack
    from slime_megatron.train.local_batch import local_micro_batches

    num_tokens = sum(len(sample.tokens) for sample in samples)
    packing = {"align": trainer.packing_align, "max_tokens": num_tokens, "loss_mean": trainer.cfg.algo.loss_mean}
    [batch] = pack(samples, num_dp=1, **packing)
    return local_micro_batches(batch, trainer.device)


def _of_sampled(scores: torch.Tensor, micro: Any) -> torch.Tensor:
    errors: torch.Tensor = scores[0] - micro.columns[ROLLOUT_LOGPROBS]
    return errors[micro.loss_mask > 0].float()
