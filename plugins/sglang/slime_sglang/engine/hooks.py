"""The engine's half of the receipt, inside SGLang's scheduler processes (entry-point group `sglang.srt.plugins`).

`slime_sglang.engine.incoming` brings a version in. It is verified: each received tensor has the published bytes and all
of it was used; each parameter was wholly written by this version. SGLang is hooked by its own plugin mechanism
(`HookRegistry`), not patched. Weights that arrive without a `BucketNote`, which slime's have, are refused.

A model that drafts for another one (with its own multi-token prediction layer) takes every bucket as well, with a
record of its own. A tensor that neither model uses is a fault, and so is an unwritten parameter of either.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch

from slime.errors import SlimeError
from slime_sglang.engine import invariant
from slime_sglang.engine.adapters import know_manager, serve
from slime_sglang.engine.derived import after_dummy_weights
from slime_sglang.engine.experts import every_copy
from slime_sglang.engine.incoming import IncomingVersion
from slime_sglang.engine.load_plan import Partial, ReceivedBucket
from slime_sglang.engine.own import is_of_an_engine
from slime_sglang.engine.routed import keep_rows, note_in_bytes, note_prompt, of_a_pass, put_back_rows
from slime_sglang.engine.running_requests import flush_behind_waiting, under_requests
from slime_sglang.engine.scores import scoring_class
from slime_sglang.engine.side import EngineSide
from slime_sglang.engine.version_check import VersionFault, unused
from weight_buckets.bucket import Header
from weight_buckets.receipt import NOTE_KEY, BucketNote

_BUCKET = "flattened_bucket"
"""SGLang's load format of a bucket."""
RECEIVERS = "slime_receivers"
"""Entry-point group: transport -> what takes a version in, on a rank of an engine."""
IDLE_MODULES = "slime_idle_modules"
"""Entry-point group: what gives the modules of a model that SGLang builds and never runs."""
INCOMPLETE = "incomplete"
"""Weight version of an engine between the first byte of a version and its last."""
FOREIGN = "foreign"
"""Weight version of an engine that somebody else gave a number or, in vain, buckets of weights."""
_REFUSED = "only a publish of slime's may change weights; these came without its note"
_PUBLISHED = "tokenizer.weight_version"
"""As what SGLang sets the version that an update brought, after that has succeeded."""
Answer = tuple[bool, str]
logger = logging.getLogger(__name__)
_incoming: weakref.WeakKeyDictionary[torch.nn.Module, IncomingVersion] = weakref.WeakKeyDictionary()
_drafts: weakref.WeakKeyDictionary[torch.nn.Module, Any] = weakref.WeakKeyDictionary()
"""By model, SGLang's updater of the one that drafts for it."""


def install() -> None:
    """SGLang calls this in each of its processes before it builds anything."""
    if not is_of_an_engine():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    invariant.install()
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    worker = "sglang.srt.managers.tp_worker.BaseTpWorker"
    front = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
    manager = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    HookRegistry.register(f"{updater}.update_weights_from_tensor", load_bucket, HookType.AROUND)
    HookRegistry.register(f"{updater}.update_weights_from_distributed", receive_version, HookType.AROUND)
    HookRegistry.register(f"{worker}.update_weights_from_tensor", answer, HookType.AROUND)
    HookRegistry.register(f"{worker}.update_weights_from_distributed", answer, HookType.AROUND)
    HookRegistry.register(f"{worker}.update_weights_from_disk", refuse, HookType.REPLACE)
    HookRegistry.register(f"{worker}.update_weights_from_ipc", refuse, HookType.REPLACE)
    HookRegistry.register(f"{front}.update_weights_from_tensor", keep_version, HookType.AROUND)
    HookRegistry.register(f"{front}.update_weights_from_distributed", keep_version, HookType.AROUND)
    HookRegistry.register("sglang.srt.server_args.ServerArgs.override", keep_number, HookType.AROUND)
    HookRegistry.register(f"{manager}.update_weights_from_tensor", know_draft, HookType.AROUND)
    HookRegistry.register(f"{manager}.update_weights_from_distributed", know_draft, HookType.AROUND)
    HookRegistry.register(f"{manager}.update_weights_from_tensor", under_requests, HookType.AROUND)
    HookRegistry.register(f"{manager}.update_weights_from_distributed", under_requests, HookType.AROUND)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.flush_cache", flush_behind_waiting, HookType.AROUND)
    HookRegistry.register("sglang.srt.model_loader.loader._post_load_weights", after_dummy_weights, HookType.AROUND)
    HookRegistry.register("sglang.srt.model_loader.utils.get_model_architecture", scoring_class, HookType.AROUND)
    locations = "sglang.srt.eplb.expert_location.ExpertLocationMetadata"
    HookRegistry.register(f"{locations}.logical_to_all_physical", every_copy, HookType.REPLACE)
    cache = "sglang.srt.layers.quantization.kv_cache.BaseKVCacheMethod"
    HookRegistry.register(f"{cache}.process_weights_after_loading", unset_scales, HookType.BEFORE)
    lora = "sglang.srt.lora.lora_manager.LoRAManager"
    HookRegistry.register(f"{lora}.__init__", know_manager, HookType.AFTER)
    HookRegistry.register(f"{lora}.prepare_lora_batch", serve, HookType.AROUND)
    capturer = "sglang.srt.state_capturer.routed_experts.RoutedExpertsCapturer"
    HookRegistry.register(f"{capturer}.create", note_in_bytes, HookType.AROUND)
    HookRegistry.register(f"{capturer}._get_local_slice", of_a_pass, HookType.AROUND)
    prefill = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
    HookRegistry.register(f"{prefill}.send_kv_chunk", note_prompt, HookType.AFTER)
    HookRegistry.register("sglang.srt.managers.schedule_batch.Req.offload_kv_cache", keep_rows, HookType.BEFORE)
    results = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
    HookRegistry.register(f"{results}._maybe_collect_routed_experts", put_back_rows, HookType.AFTER)


def unset_scales(method: Any, layer: Any) -> None:
    """Before SGLang takes over the scales of a layer's KV cache, parameters of models in FP8: no checkpoint of ours has
    them, and those of dummy weights are near 0, by which a cache in FP8 loses every value. Below 0 they become 1."""
    layer.k_scale.fill_(-1.0)
    layer.v_scale.fill_(-1.0)


def know_draft(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """Around the scheduler's update, where SGLang still knows the drafting model. Ours go to the other one
    (`disable_draft_model`; broadcasts always do), and `load_bucket` hands them on."""
    from sglang.srt.managers.scheduler_components import weight_updater

    if draft := weight_updater._get_draft_model_runner(manager.draft_worker):
        _drafts[manager.tp_worker.model_runner.model] = draft.weight_updater
    return original(manager, recv_req)


async def keep_version(original: Callable[..., Awaitable[Answer]], front: Any, *arguments: Any) -> Answer:
    """Around an update, in the process that answers requests: no answer has the number of the old or the new version
    while weights are of both. SGLang sets the new one after the last bucket, if nothing was wrong."""
    _set_version(front, INCOMPLETE)
    success, message = await original(front, *arguments)
    if _REFUSED in message:
        _set_version(front, FOREIGN)
    return success, message


def _set_version(front: Any, version: str) -> None:
    if front.server_args.weight_version != version:
        front.server_args.override(__name__, weight_version=version)


def keep_number(original: Callable[..., None], server_args: Any, source: str, **fields: Any) -> None:
    """Around every change of SGLang's settings while it runs: a version that no publish brought is nobody's number.
    SGLang notes each change for ever, two a publish: all but the last one are forgotten."""
    if "weight_version" in fields and source not in (__name__, _PUBLISHED):
        fields["weight_version"] = FOREIGN
    if fields.keys() == {"weight_version"} and (notes := getattr(server_args, "_runtime_mutations", None)):
        notes[:] = [note for note in notes if note[1].keys() != fields.keys()]
    original(server_args, source, **fields)


def refuse(worker: Any, recv_req: Any) -> Answer:
    """Instead of the worker's update from a folder, and from another process's memory."""
    return False, _REFUSED


def answer(original: Callable[..., Answer], worker: Any, recv_req: Any) -> Answer:
    """Around the worker's update, on every rank: a fault becomes an answer and never ends the engine."""
    result = _attempt(original, worker, recv_req)
    if not result[0]:
        gc.collect()  # the frames of a failed loader hold the bucket's memory, in cycles with their exception
    return _merge(result)


def _attempt(original: Callable[..., Answer], worker: Any, recv_req: Any) -> Answer:
    try:
        result = original(worker, recv_req)
        if torch.cuda.is_available():  # the publisher fills the bucket again once it has the answer
            torch.cuda.current_stream().synchronize()
        return result
    except (VersionFault, SlimeError) as fault:
        return False, str(fault)
    except Exception as error:
        logger.exception("A bucket of weights could not be loaded")
        return False, f"{type(error).__name__}: {error}"


def _merge(result: Answer) -> Answer:
    """One answer for all tensor-parallel ranks of the engine, each of which gets here whatever happened before: the
    first fault, or that nothing was left unused."""
    results: Sequence[Answer] = _gather(result)
    if fault := next((other for other in results if not other[0]), None):
        return fault
    answers = [json.loads(message) for _, message in results]
    if missing := unused([partial for answer in answers for partial in answer["partials"]]):
        name = min(missing)
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return False, f"tensor '{name}'{more}: the engine's model has no place for {missing[name]} bytes of it"
    return True, json.dumps({NOTE_KEY: answers[0][NOTE_KEY]})


def _gather(offer: Any) -> Sequence[Any]:
    """What every tensor-parallel rank of the engine offers; collective."""
    from sglang.srt.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    offers: Sequence[Any] = group.all_gather_object(offer) if group.world_size > 1 else [offer]
    return offers


def receive_version(
    original: Callable[..., Answer],
    updater: Any,
    names: Sequence[str],
    dtypes: Sequence[str],
    shapes: Sequence[Sequence[int]],
    group_name: str,
    load_format: str | None = None,
) -> Answer:
    """Around SGLang's broadcast: take a whole version, by the transport that the request names. What it needs to know
    travels as the load format, the only text that the request has room for."""
    if not (load_format and load_format.startswith(f'{{"{NOTE_KEY}"')):
        raise VersionFault(_REFUSED)
    told, load = json.loads(load_format)[NOTE_KEY], functools.partial(_load, updater)
    receive = _receiver(told.pop("transport"))
    groups = updater._model_update_group
    came: Answer = receive(told, EngineSide(updater.get_model(), torch.device(updater.device), groups, load, _gather))
    return came


@functools.cache
def _receiver(transport: str) -> Callable[[Mapping[str, Any], EngineSide], Any]:
    found = entry_points(group=RECEIVERS, name=transport)
    if not found:
        what = f"no transport '{transport}' is installed where the engine runs"
        todo = "Install there what is installed where the trainers run."
        raise SlimeError(what, where="weights.transport", todo=todo)
    receive: Callable[[Mapping[str, Any], EngineSide], Any] = next(iter(found)).load()
    return receive


def _load(updater: Any, bucket: dict[str, Any]) -> Any:
    return updater.update_weights_from_tensor(named_tensors=bucket, load_format=_BUCKET)


def load_bucket(
    original: Callable[..., Answer], updater: Any, named_tensors: Any, load_format: str | None = None
) -> Answer:
    """Around the loading of one bucket on one rank: read, load under observation, account, answer."""
    if not (isinstance(named_tensors, dict) and NOTE_KEY in named_tensors):
        raise VersionFault(_REFUSED)
    note, model = BucketNote(**named_tensors[NOTE_KEY]), updater.get_model()
    partials = _load_draft(_drafts.get(model), named_tensors)
    if note.index == 0:
        _incoming[model] = IncomingVersion(
            model, note.version, _own_parameters(model), may_replay=_stays_in_place(model)
        )
    incoming = _incoming.pop(model, None)  # put back only after a good bucket: a fault ends the version
    if incoming is None:
        raise VersionFault(f"version {note.version} begins with bucket {note.index}: an earlier bucket failed")
    bucket = ReceivedBucket.of(named_tensors["flattened_tensor"], Header(**named_tensors["header"]))
    incoming.take(note, bucket, lambda: original(updater, named_tensors=bucket.for_sglang, load_format=load_format))
    if not note.last:
        _incoming[model] = incoming
        return True, json.dumps({NOTE_KEY: {}, "partials": [{}]})
    receipt = incoming.finish(note)
    return True, json.dumps({NOTE_KEY: receipt, "partials": [incoming.check.partial, *partials]})


def _load_draft(draft: Any, bucket: dict[str, Any]) -> list[Partial]:
    """Load a bucket of ours into the drafting model, if there is one; returns what it used only parts of."""
    if draft is None:
        return []
    partials: list[Partial] = json.loads(_load(draft, bucket)[1])["partials"]
    return partials


def _stays_in_place(model: torch.nn.Module) -> bool:
    """Every version's tensors go where those of the last one went. A drafting model takes few of what it is offered."""
    return not any(draft.get_model() is model for draft in _drafts.values())


def _own_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters that a version must write. A drafting model borrows embeddings and output head of the model it drafts
    for; modules that never run are left out too, and scales of KV caches, as by SGLang's own check."""
    lenders = [target for target, draft in _drafts.items() if draft.get_model() is model]
    others = [*lenders, *(module for find in _finders_of_idle() for module in find(model))]
    exempt = {parameter.data_ptr() for other in others for parameter in other.parameters()}
    for name, value in model.named_parameters():
        if value.data_ptr() not in exempt and not getattr(value, "_skip_weight_check", False):
            yield name, value


@functools.cache
def _finders_of_idle() -> tuple[Callable[[torch.nn.Module], Iterator[torch.nn.Module]], ...]:
    return tuple(found.load() for found in entry_points(group=IDLE_MODULES))
