"""Rules of how an engine batches, drafts and computes, as those of `slime_sglang.rules.rules`."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.gpus import gpu_of
from slime.config.schema import Role
from slime.errors import SlimeError
from slime.topology.server_fields import draft_fields, graph_step, prefill_chunk
from slime_sglang.rules.asked import Asked

PREFILL_GRAPHS = ("cuda_graph_max_bs_prefill", "cuda_graph_bs_prefill")
DECODE_GRAPHS = ("cuda_graph_max_bs_decode", "cuda_graph_bs_decode")
SHAPE = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def serving_problems(asked: Asked) -> Iterator[SlimeError]:
    for rule in (_requests, _chunks, _graphs, _drafts, _kernels, _other_ranks):
        yield from rule(asked)


def _requests(asked: Asked) -> Iterator[SlimeError]:
    dp, requests = asked.group.dp, asked.get("max_running_requests")
    if requests is not None and (requests % dp or requests < dp):
        above = -(-max(requests, 1) // dp) * dp
        what = f"is {requests}, of which SGLang gives each of {dp} data-parallel ranks {requests // dp}"
        yield asked.problem("max_running_requests", what, f"Set it to {above}.")


def _chunks(asked: Asked) -> Iterator[SlimeError]:
    """Data-parallel ranks share a chunk of prompts, and each has whole pages."""
    chunk = asked.get("chunked_prefill_size") or prefill_chunk(asked.cluster.device_memory_mb)
    dp = asked.group.dp
    page = asked.get("page_size") or asked.page
    if asked.group.role is not Role.decode and chunk > 0 and (chunk // dp % page or chunk < dp):
        above = -(-chunk // (dp * page)) * dp * page
        what = f"is {chunk}, of which each of {dp} data-parallel ranks has {chunk // dp}, no whole pages of {page}"
        yield asked.problem("chunked_prefill_size", what, f"Set it to {above}.")


def _graphs(asked: Asked) -> Iterator[SlimeError]:
    """Batches for which SGLang captures no graph, though it was told to."""
    group = asked.group
    idle = {
        PREFILL_GRAPHS: {
            "decode engines": group.role is Role.decode,
            "latent attention": bool(asked.model.get("multi_latent_attention")),
            "data-parallel attention": group.dp > 1,
            f"moe_a2a_backend={asked.get('moe_a2a_backend')}": group.spreads_experts,
        },
        DECODE_GRAPHS: {"prefill engines": group.role is Role.prefill},
    }
    for keys, reasons in idle.items():
        reason = next((name for name, holds in reasons.items() if holds), None)
        for key in keys if reason else ():
            if asked.is_own(key):
                yield asked.problem(key, f"does nothing: SGLang captures no such graphs of {reason}", "Remove it.")
    step = graph_step(group)
    for key in DECODE_GRAPHS if group.role is not Role.prefill else ():
        value = asked.get(key)
        wrong = [size for size in (value if isinstance(value, list) else [value]) if size is not None and size % step]
        if wrong:
            above = -(-wrong[0] // step) * step
            what = f"has {wrong[0]}: {group.attention_tp} ranks share a batch, so SGLang captures multiples of {step}"
            yield asked.problem(key, what, f"Use {above} instead.")


def _drafts(asked: Asked) -> Iterator[SlimeError]:
    algorithm = asked.get("speculative_algorithm")
    if algorithm is None:
        return
    if not asked.cluster.on_gpus:
        yield asked.problem("speculative_algorithm", f"is {algorithm}, and SGLang drafts on GPUs alone", "Remove it.")
        return
    if asked.group.dp > 1 and algorithm not in ("EAGLE", "EAGLE3", "NEXTN"):
        what = f"is {algorithm}, which SGLang does not do with data-parallel attention"
        yield asked.problem("speculative_algorithm", what, "Use EAGLE.")
    given = [key for key in SHAPE if asked.get(key) is not None]
    shape = draft_fields(asked.group.sglang)  # empty of an algorithm that has none
    if given and (missing := next((key for key in SHAPE if shape and key not in shape), None)):
        what = f"is not set, but {given[0]} is"
        yield asked.problem(missing, what, f"Set {' and '.join(SHAPE[:2])}, or none of the three.")
    steps, topk = asked.get("speculative_num_steps"), asked.get("speculative_eagle_topk")
    drafted = asked.get("speculative_num_draft_tokens")
    if topk == 1 and steps is not None and drafted is not None and drafted != steps + 1:
        what = f"is {drafted}, but with speculative_eagle_topk=1 SGLang makes it {steps + 1}"
        yield asked.problem("speculative_num_draft_tokens", what, f"Set it to {steps + 1}.")
    if asked.get("enable_deterministic_inference"):
        what = "draws with no seed a request while it speculates"
        yield asked.problem("enable_deterministic_inference", what, "Remove it, or speculative_algorithm.")
    if asked.get("enable_mixed_chunk"):
        what = "is switched off by SGLang while it speculates, without a word"
        yield asked.problem("enable_mixed_chunk", what, "Remove it.")


def _kernels(asked: Asked) -> Iterator[SlimeError]:
    """Kernels that the run's GPUs do not have, where their kind is known."""
    gpu = gpu_of(asked.cluster)
    if gpu is None:
        return
    if asked.get("enable_single_batch_overlap") and gpu.architecture == 9:
        what = "needs kernels that Hopper GPUs do not have"
        yield asked.problem("enable_single_batch_overlap", what, "Remove it.")
    latent = bool(asked.model.get("multi_latent_attention"))
    for key in ("attention_backend", "prefill_attention_backend", "decode_attention_backend"):
        if asked.get(key) == "fa3" and gpu.architecture != 9 and (latent or gpu.architecture != 8):
            what = f"is fa3, which has no kernels for compute capability {gpu.capability:g}{' and latents' * latent}"
            yield asked.problem(key, what, "Remove it, and SGLang chooses.")


def _other_ranks(asked: Asked) -> Iterator[SlimeError]:
    """Ranks that weights are not published to as they would need them."""
    for key in ("attn_cp_size", "moe_dp_size", "dcp_size"):
        if asked.get(key) not in (None, 1):
            yield asked.problem(key, f"is {asked.get(key)}, which was never tried with slime", "Remove it.")
    for key in ("enable_prefill_context_parallel", "enable_dsa_prefill_context_parallel", "enable_prefill_cp"):
        if asked.get(key):
            yield asked.problem(key, "was never tried with slime", "Remove it.")
