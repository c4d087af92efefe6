"""How an engine batches, drafts and computes: what SGLang would refuse or change without a word is refused."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.config.schema import Role, SlimeConfig

from .real_server_args import server_args
from .test_rules import ATTENTION, DEEPEP, DENSE, EAGLE, MOE, SPARSE, problems
from .test_rules import base as base

LATENT = {**MOE, "multi_latent_attention": True}
WIDE = {"tp_size": 8, "dp_size": 8, **ATTENTION}


@pytest.mark.parametrize(
    ("fields", "model", "says"),
    [
        (
            {**WIDE, "max_running_requests": 100},
            MOE,
            "is 100, of which .* each of 8 .* ranks 12. Set it to 104",
        ),
        ({**WIDE, "max_running_requests": 4}, MOE, "is 4, of which SGLang gives each of 8 .* ranks 0. Set it to 8"),
        (
            {"tp_size": 24, "dp_size": 24, **ATTENTION},
            {**SPARSE, "num_attention_heads": 24},
            "chunked_prefill_size: is 8192, of which each of 24 .* has 341, no whole pages of 64. Set it to 9216",
        ),
        ({**WIDE, "cuda_graph_max_bs_prefill": 512}, MOE, "does nothing: SGLang captures no such graphs of data-paral"),
        ({"cuda_graph_bs_prefill": [8]}, LATENT, "cuda_graph_bs_prefill: does nothing.*of latent attention"),
        (
            {"tp_size": 8, "dp_size": 2, **ATTENTION, "cuda_graph_bs_decode": [4, 6, 8]},
            MOE,
            "cuda_graph_bs_decode: has 6: 4 ranks share a batch, so SGLang captures multiples of 4. Use 8 instead",
        ),
        ({"tp_size": 8, "moe_dense_tp_size": 1, "cuda_graph_max_bs_decode": 12}, MOE, "has 12: 8 ranks.*Use 16"),
        ({**WIDE, "speculative_algorithm": "NGRAM"}, MOE, "is NGRAM, which SGLang does not do with data-parallel"),
        ({**EAGLE, **WIDE, "speculative_algorithm": "NGRAM"}, MOE, "is NGRAM, which SGLang does not do with"),
        ({**WIDE, "speculative_algorithm": "STANDALONE"}, MOE, "is STANDALONE, which SGLang does not do"),
        (
            {"speculative_algorithm": "EAGLE", "speculative_num_steps": 2},
            DENSE,
            "speculative_eagle_topk: is not set, but speculative_num_steps is. Set speculative_num_steps and",
        ),
        ({**EAGLE, "enable_mixed_chunk": True}, DENSE, "enable_mixed_chunk: is switched off by SGLang"),
        ({"enable_single_batch_overlap": True}, MOE, "enable_single_batch_overlap: needs kernels that Hopper"),
        ({"tp_size": 8, "attn_cp_size": 2}, DENSE, "attn_cp_size: is 2, which was never tried with slime"),
        ({"tp_size": 8, "enable_prefill_cp": True}, DENSE, "enable_prefill_cp: was never tried with slime"),
    ],
)
def test_fields(base: SlimeConfig, fields: dict[str, Any], model: dict[str, Any], says: str) -> None:
    found = problems(base, fields, model)
    assert any(re.search(says, problem) for problem in found), found


@pytest.mark.parametrize(
    ("fields", "role", "says"),
    [
        ({"cuda_graph_max_bs_decode": 8}, Role.prefill, "cuda_graph_max_bs_decode: does nothing.*prefill engines"),
        ({"cuda_graph_bs_prefill": [8]}, Role.decode, "cuda_graph_bs_prefill: does nothing.*decode engines"),
    ],
)
def test_roles(base: SlimeConfig, fields: dict[str, Any], role: Role, says: str) -> None:
    found = problems(base, fields, DENSE, role=role)
    assert any(re.search(says, problem) for problem in found), found


def test_cutlass_takes_fp8_experts_on_one_rank_alone(base: SlimeConfig) -> None:
    wide = {**MOE, "moe_ffn_hidden_size": 2048}
    fields = {"tp_size": 8, "ep_size": 8, "moe_runner_backend": "cutlass"}
    assert any("moe_runner_backend: is cutlass" in problem for problem in problems(base, fields, wide, fp8="block"))
    assert problems(base, fields, wide) == []


@pytest.mark.parametrize(
    "fields",
    [
        {**WIDE, "max_running_requests": 104},
        {"tp_size": 8, "dp_size": 2, **ATTENTION, "cuda_graph_bs_decode": [4, 8]},
        {"cuda_graph_bs_prefill": [8]},
        {"tp_size": 16, **DEEPEP, "cuda_graph_max_bs_decode": 16},
    ],
)
def test_what_works_is_left_alone(base: SlimeConfig, fields: dict[str, Any]) -> None:
    assert problems(base, fields, MOE, fp8="block" if "moe_a2a_backend" in fields else None) == []


@pytest.mark.slow
def test_sglang_itself_does_so() -> None:
    """On the real `ServerArgs`, as far as it can be built without a GPU."""

    def after(name: str, **fields: Any) -> Any:
        return getattr(server_args(**{"chunked_prefill_size": 8192, **fields}), name)

    drafting = {"speculative_algorithm": "EAGLE"}
    assert after("chunked_prefill_size", tp_size=24, dp_size=24, enable_dp_attention=True) == 8192 // 24
    assert after("enable_mixed_chunk", enable_mixed_chunk=True, **EAGLE) is False
    shape = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert [after(name, **drafting) for name in shape] == [3, 1, 4]
    assert after("speculative_num_draft_tokens", **EAGLE) == 3
    with pytest.raises(AssertionError):
        after("tp_size", speculative_eagle_topk=1, **drafting)
    with pytest.raises(ValueError, match="does not support dp attention"):
        after("tp_size", tp_size=2, dp_size=2, enable_dp_attention=True, speculative_algorithm="STANDALONE")
    with pytest.raises(AssertionError, match="only supported with ep_size == 1"):
        after("tp_size", tp_size=2, ep_size=2, moe_runner_backend="cutlass", quantization="fp8")


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "NGRAM", "STANDALONE"])
def test_on_a_cpu_nothing_drafts(algorithm: str) -> None:
    words = ["+model=glm4-moe-tiny", "+rollout.sglang.enable_deterministic_inference=false"]
    drafts = [*words, f"rollout.sglang.speculative_algorithm={algorithm}"]
    found = [str(problem) for problem in examine([*drafts, "+cluster=local"]).problems]
    said = f"rollout.sglang.speculative_algorithm: is {algorithm}, and SGLang drafts on GPUs alone. Remove it."
    assert said in found
    assert [str(problem) for problem in examine([*words, "+cluster=local"]).problems] == []
    on_gpus = examine([*drafts, "+cluster=h100x1"]).problems
    assert not any("on GPUs alone" in str(problem) for problem in on_gpus)


@pytest.mark.parametrize(
    ("fields", "model", "gpu", "says"),
    [
        ({"attention_backend": "fa3"}, DENSE, "rtx5090", "attention_backend: is fa3, .* compute capability 12. Remove"),
        ({"decode_attention_backend": "fa3"}, LATENT, "a100-80", "is fa3, .* compute capability 8 and latents"),
        ({"enable_single_batch_overlap": True}, MOE, "h200", "needs kernels that Hopper GPUs do not have"),
        ({"tp_size": 16, **DEEPEP}, MOE, "l40s", "moe_a2a_backend: is deepep, which needs NVLink"),
        ({"tp_size": 16, **DEEPEP}, MOE, "a100-80", "moe_a2a_backend: is deepep, which needs NVLink and .* 9.0"),
        ({**WIDE, "enable_dp_attention": True}, DENSE, "rtx4090", None),
        ({"attention_backend": "fa3"}, DENSE, "a100-80", None),
        ({"attention_backend": "fa3"}, LATENT, "h100", None),
        ({"attention_backend": "fa3"}, LATENT, None, None),
        ({"enable_single_batch_overlap": True}, MOE, "b200", None),
    ],
)
def test_kernels_of_other_gpus(
    base: SlimeConfig, fields: dict[str, Any], model: dict[str, Any], gpu: str | None, says: str | None
) -> None:
    cfg = copy.deepcopy(base)
    cfg.cluster.gpu = gpu
    found = [one for one in problems(cfg, fields, model) if re.search("fa3|Hopper|NVLink", one)]
    assert bool(found) == bool(says), found
    assert not says or re.search(says, found[0]), found


def test_the_chunk_of_prompts_is_that_of_the_gpus_memory(base: SlimeConfig) -> None:
    """24 ranks share 2,048 tokens on a GPU of 24 GB: SGLang's `_handle_gpu_memory_settings`."""
    cfg = copy.deepcopy(base)
    cfg.cluster.device_memory_mb = 24564
    found = problems(cfg, {"tp_size": 24, "dp_size": 24, **ATTENTION}, {**SPARSE, "num_attention_heads": 24})
    assert any("chunked_prefill_size: is 2048, of which each of 24" in one for one in found), found
