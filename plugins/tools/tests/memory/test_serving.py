"""Sizes of what SGLang allocates for requests, against SGLang's own classes and functions on a CPU."""

from __future__ import annotations

import dataclasses
from functools import partial
from types import SimpleNamespace as Settings
from typing import Any

import pytest
import torch

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.config.hf import read_hf_config
from slime_tools.memory.serving import (
    FLASHINFER,
    INPUTS,
    attention_buffers,
    request_table,
    table_rows,
)
from slime_tools.memory.trainer import GIB, Phase

CONTEXT = 1024
RUNNING = "rollout.sglang.max_running_requests"


def words(recipe: str) -> tuple[str, str]:
    model, cluster = recipe.split("@")
    return f"+model={model}", f"+cluster={cluster}"


def num_bytes(value: Any) -> int:
    """Of tensors, however they are held."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    held = value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, "__dict__") else ()
    return sum(map(num_bytes, held))


@pytest.mark.parametrize("tokens", [3_000, 400_000, 6_669_420, 50_000_000])
@pytest.mark.parametrize("running", [None, 512])
def test_as_many_requests_as_sglang_takes(tokens: int, running: int | None) -> None:
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

    configurator = Settings(
        model_config=Settings(context_len=202_752),
        server_args=Settings(max_running_requests=running),
        ps=Settings(attn_dp_size=1),
        mambaish_config=None,
    )
    taken = KVCacheConfigurator.resolve_max_num_reqs(configurator, tokens)
    assert table_rows(tokens, 202_752, running) == taken + 1


def test_the_table_is_as_large_as_sglangs() -> None:
    from sglang.srt.disaggregation.decode import DecodeReqToTokenPool
    from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    for drafted in (0, 4):
        args = Settings(max_speculative_num_draft_tokens=drafted, speculative_algorithm=None)
        width = CONTEXT + get_req_to_token_extra_context_len(args)
        pool = ReqToTokenPool(50, width, "cpu", enable_memory_saver=False)
        assert request_table(table_rows(10**6, CONTEXT, 50), CONTEXT, drafted) == pool.req_to_token.nbytes
        pool = DecodeReqToTokenPool(50, width, "cpu", enable_memory_saver=False, pre_alloc_size=20)
        assert request_table(table_rows(10**6, CONTEXT, 50, waiting=20), CONTEXT, drafted) == pool.req_to_token.nbytes


def test_input_buffers_have_as_many_bytes_a_token_as_sglangs() -> None:
    from sglang.srt.model_executor.cuda_graph_buffer_registry import build_eager_registry

    sizes = []
    for tokens in (1000, 3000):
        registry = build_eager_registry(
            device=torch.device("cpu"), max_bs=8, max_num_token=tokens, cache_loc_dtype=torch.int64
        )
        sizes.append(num_bytes({name: registry.get_slot(name).buffer for name in registry.slot_names()}))
    assert sizes[1] - sizes[0] == 2000 * INPUTS


def made_in_graphs(requests: int, rows: int, latent: bool, *, drafts: bool, multiprocessors: int) -> int:
    """Bytes of what SGLang's attention in Triton makes for CUDA graphs."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend, _mla_decode_kv_splits_cap

    attention: Any = object.__new__(TritonAttnBackend)
    attention.max_context_len, attention.device, attention.num_head, attention.v_head_dim = CONTEXT, "cpu", 4, 32
    attention.max_kv_splits = _mla_decode_kv_splits_cap(8, multiprocessors, CONTEXT) if latent else 8
    attention.sliding_window_size = attention.swa_v_head_dim = attention._translate_kv_loc = None
    attention.use_sliding_window_kv_pool = attention.skip_prefill = False
    attention.is_draft_runner = drafts
    attention.init_cuda_graph_state(requests, rows)
    return num_bytes(attention)


@pytest.mark.parametrize(("latent", "multiprocessors"), [(False, 132), (True, 132), (True, 14)])
def test_attention_in_triton_keeps_as_much_as_sglangs(latent: bool, multiprocessors: int) -> None:
    sizes = {"context": CONTEXT, "heads": 4, "value": 32, "latent": latent, "multiprocessors": multiprocessors}
    made_by_triton = partial(made_in_graphs, multiprocessors=multiprocessors)
    alone = made_by_triton(16, 16, latent, drafts=False)
    assert attention_buffers("triton", 16, **sizes, drafted=0, steps=0) == pytest.approx(alone, rel=1e-3)
    both = made_by_triton(16, 64, latent, drafts=False) + made_by_triton(16, 64, latent, drafts=True)
    assert attention_buffers("triton", 16, **sizes, drafted=4, steps=0) == pytest.approx(both, rel=1e-3)


def test_latents_in_triton_take_gigabytes() -> None:
    """520 requests of GLM-4.7-Flash: 20 heads, 256 parts of 512 numbers in fp32, and 9 bytes of 202,752 places."""
    planned = attention_buffers("triton", 520, 202_752, 20, 512, latent=True, drafted=0, steps=0, multiprocessors=132)
    assert planned == 520 * (9 * 202_752 + 20 * 256 * 513 * 4)


@pytest.mark.parametrize(
    ("recipe", "dp"),
    [("glm4-9b@h100x8", 1), ("llama3.2-1b@rtx4090x1", 1), ("glm4.7-flash@h100x8", 8), ("glm4.5@h100x64", 4)],
)
def test_the_share_that_sglang_takes_by_itself(recipe: str, dp: int) -> None:
    from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig
    from sglang.srt.server_args import ServerArgs

    free = [f"rollout.sglang.{key}=null" for key in ("mem_fraction_static", "chunked_prefill_size")]
    [rank, *_] = plan_of(*words(recipe), *free).engines.values()
    assert rank.device_bytes is not None
    latent = bool(rank.model.get("multi_latent_attention"))
    args = object.__new__(ServerArgs)
    vars(args).update(device="cuda", tp_size=rank.group.tp, dp_size=dp, enable_dp_attention=dp > 1, model_path="")
    vars(args).update(use_mla_backend=lambda: latent, get_model_config=lambda: Settings(is_multimodal=False))
    args.cuda_graph_config = CudaGraphConfig()
    args.cuda_graph_config.decode.backend = Backend.FULL
    args.cuda_graph_config.decode.max_bs = rank.largest_batch
    args.cuda_graph_config.prefill.backend = Backend.DISABLED if latent or dp > 1 else Backend.BREAKABLE
    args._handle_gpu_memory_settings(rank.device_bytes / 2**20)
    assert rank.fraction == args.mem_fraction_static
    assert rank.chunk == args.chunked_prefill_size


def test_flashinfer_has_its_workspace() -> None:
    from sglang.srt.environ import envs

    assert envs.SGLANG_FLASHINFER_WORKSPACE_SIZE.get() == FLASHINFER
    assert attention_buffers("flashinfer", 0, CONTEXT, 4, 32, latent=False, drafted=0, steps=0) == FLASHINFER


def test_every_family_says_how_long_its_context_is_by_sglang() -> None:
    from sglang.srt.utils.hf_transformers.common import get_context_length

    models = {
        "glm4.7-flash@h100x8": "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash",
        "deepseek-r1@h100x128": "pkg://slime_plugin_deepseek_v3/assets/DeepSeek-R1",
        "glm5.2@h100x256": "pkg://slime_plugin_glm5/assets/GLM-5.2",
        "llama3.1-8b@h100x8": "pkg://slime_plugin_llama/assets/Llama-3.1-8B-Instruct",
        "gemma3-1b@rtx4090x1": "pkg://slime_plugin_gemma3/assets/gemma-3-1b-it",
        "qwen3-4b@h100x1": "pkg://slime_plugin_qwen3/assets/Qwen3-4B",
        "qwen2.5-7b@h100x8": "pkg://slime_plugin_qwen2/assets/Qwen2.5-7B-Instruct",
        "mimo-7b-rl@h100x8": "pkg://slime_plugin_mimo/assets/MiMo-7B-RL",
    }
    for recipe, model in models.items():
        [rank, *_] = plan_of(*words(recipe)).engines.values()
        assert rank.longest_context == get_context_length(Settings(**read_hf_config(model)))


def test_nothing_that_serves_requests_lies_in_the_share_of_the_pool() -> None:
    """As in the publish of two trainer ranks on H100s that ran out of memory, where SGLang chose the requests: 78.4 GiB
    were in use. A limit that nothing reaches spares nearly all of the table."""
    run = ("+model=glm4.7-flash", "+cluster=h100x8-split", "recipe=none", "model.num_layers=8")
    run += ("rollout.sglang.disable_cuda_graph=true", "rollout.sglang.tp_size=1")
    run += ("weights.num_sources=2", "weights.bucket_mb=2048")
    limited, free = (plan_of(*run, *more).engines["default"] for more in ((), (f"{RUNNING}=4096",)))
    assert limited.pool_tokens == free.pool_tokens
    assert limited.running == limited.largest_batch == 520
    assert free.request_table / GIB == pytest.approx(3.09, abs=0.01)
    assert limited.request_table / GIB == pytest.approx(0.39, abs=0.01)
    held = free.on_device(bucket=2 * GIB)
    assert held.total(Phase.publish) / GIB == pytest.approx(78.4, rel=0.01)
    assert held.total(Phase.start) < held.total(Phase.publish) - 6 * GIB


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize(("gpu", "major"), [("h100", 9), ("a100-80", 8), ("l40s", 8), ("b200", 10), ("rtx5090", 12)])
def test_attention_is_what_sglang_takes_on_that_gpu(
    gpu: str, major: int, latent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt import server_args

    for name, wanted in (("is_hopper_with_cuda_12_3", 9), ("is_sm100_supported", 10)):
        monkeypatch.setattr(server_args, name, lambda wanted=wanted: major == wanted)
    monkeypatch.setattr(server_args, "is_flashinfer_available", lambda: True)
    monkeypatch.setattr(type(server_args.current_platform), "is_out_of_tree", lambda self: False)
    model = Settings(hf_config=Settings(architectures=[]), has_attention_sinks=False)
    args = object.__new__(server_args.ServerArgs)
    vars(args).update(speculative_algorithm=None, speculative_eagle_topk=None)
    taken = args._get_default_attn_backend(latent, model)
    [rank] = plan_of(*words("qwen3-4b@h100x8"), f"cluster.gpu={gpu}", "cluster.device_memory_mb=null").engines.values()
    assert dataclasses.replace(rank, model={"multi_latent_attention": latent})._own_attention == taken
