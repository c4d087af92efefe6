"""The contract of a model plugin, as checks that its tests call with a small config.json of the family.

    def test_logits(tmp_path):
        write_checkpoint(HF, tmp_path)
        check_parity("my_family", tmp_path)

The reference is transformers' own class of the family (`AutoModelForCausalLM`). Multi-rank checks run real
Megatron-core on gloo, in processes of their own.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slime import plugins
from slime.config.hf import read_hf_config
from slime.config.schema import Init, ModelConfig, SlimeConfig
from slime.errors import SlimeError
from slime.models.bridge import traits_of
from slime.models.traits import Reference
from slime.topology.quantization import WeightFormat
from slime.weights.file_tensors import SINGLE
from slime.weights.quantized import Quantizer, quantized, quantizer_of
from slime_testing.ranks import Rank, run_ranks

Parallel = Mapping[str, Any]
"""`train.megatron`: parallel sizes and precision; what is left of the ranks is data parallel."""

SEQUENCE_LENGTHS = (3, 17, 40, 8)


def write_checkpoint(
    hf: Mapping[str, Any], folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **save: Any
) -> None:
    """Write a random checkpoint of transformers' class of `hf["model_type"]`, with nothing left trivial.

    Norm weights, biases and the router's correction bias are random too, or a mapping that drops them would pass.

    Args:
        hf: config.json of a small model.
        dtype: of everything but the correction bias, which is fp32 in every checkpoint.
        save: keywords of transformers' `save_pretrained`, such as `max_shard_size`.
    """
    model = random_model(hf, seed=seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = in_checkpoint(name, tensor.data, dtype)
    model.save_pretrained(folder, **save)
    if _references(hf):
        transformers_config(hf).save_pretrained(folder)  # that of a completed model may count what a block has added


def in_checkpoint(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor as a checkpoint in `dtype` holds it: the router's correction bias stays as precise as it is."""
    return tensor if "correction_bias" in name else tensor.to(dtype)


def random_model(hf: Mapping[str, Any], *, seed: int = 0) -> Any:
    """transformers' own model, in fp32, with nothing left trivial, and with what its class lacks of the family's blocks
    (`slime.models.traits.Reference`)."""
    model = transformers_model(hf)
    for reference in _references(hf):
        model = reference.completed(model, hf)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor.data = _random_like(name, tensor, generator)
    return model


def _references(hf: Mapping[str, Any]) -> list[Reference]:
    traits = traits_of(plugins.load().models.create(hf["model_type"]), hf)
    return [resolve_name(trait.reference)() for trait in traits if trait.reference]


def transformers_model(hf: Mapping[str, Any]) -> Any:
    """transformers' own model of a config.json, in fp32, as it is initialised."""
    return _auto_model().from_config(transformers_config(hf), dtype=torch.float32)


def transformers_config(hf: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**deepcopy(dict(hf)))  # transformers writes into nested fields


def _random_like(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(tensor.shape, generator=generator)
    if "norm" in name:
        untrained = tensor if name.endswith("weight") else 1  # 1 too, or 0 where the factor is 1 + weight
        return untrained + 0.1 * noise
    if "correction_bias" in name:
        return 0.05 * noise
    if "embed" in name:
        return noise
    widest = 1 / math.sqrt(tensor.size(-1))  # at which a matrix keeps the size of what it is given
    return noise * min(0.1, widest)


def _auto_model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def sequences(vocab_size: int) -> list[Tensor]:
    """Token sequences of unequal length, the same in every call."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(vocab_size, (length,), generator=generator) for length in SEQUENCE_LENGTHS]


def check_parity(family: str, folder: Path, *, num_layers: int | None = None, tolerance: float = 1e-5) -> float:
    """Logits of the sequences, packed and one by one, equal transformers' of each alone (fp32, CPU).

    Args:
        num_layers: cut both models to their first layers.
        tolerance: largest absolute difference of a logit. The two implementations add in another order, which costs
            about 1e-6 at logits of order 1 in fp32; a wrong norm, rotary or routing costs more than 1e-2.

    Returns:
        The largest absolute difference.
    """
    [ours] = run_ranks(logits, 1, family, folder, num_layers)
    cut = {"num_hidden_layers": num_layers} if num_layers else {}
    model = _auto_model().from_pretrained(folder, dtype=torch.float32, **cut).eval()
    with torch.no_grad():
        theirs = torch.cat([model(tokens[None]).logits[0] for tokens in sequences(model.config.vocab_size)])
    assert theirs.abs().max() > 0.5, "logits near zero would agree with anything"
    difference = float((ours - theirs).abs().max())
    assert difference <= tolerance, f"logits differ by {difference:.2e}, more than {tolerance:.0e}"
    return difference


def check_round_trip(family: str, folder: Path, world_size: int, layouts: Mapping[str, Parallel]) -> None:
    """HF -> Megatron -> HF gives back every byte, in each of the layouts, in one and the same order, on rank 0 or on
    every rank; divided among all ranks, as it is or in FP8, it gives back every tensor once."""
    results = run_ranks(round_trips, world_size, family, folder, layouts, timeout_s=110)
    orders = results[0][0]
    for rank, (_, _, differences) in enumerate(results):
        assert not differences, f"the round trip changed {differences} on rank {rank}"
    assert all(order == orders[0] for order in orders), "the order of export depends on the layout"
    endings = tuple(part.ending for form in installed_formats() for part in form.parts((1, 1))[1:])
    for shares in zip(*(shares for _, shares, _ in results), strict=True):
        names = [name for share in shares for name in share if name in orders[0] or not name.endswith(endings)]
        assert sorted(names) == sorted(orders[0]), "what ranks receive by turns is not the model"
        assert sum(map(bool, shares)) > 1 or world_size == 1, "one rank received everything"


def check_refusals(family: str, folder: Path, scratch: Path) -> None:
    """A checkpoint that lacks a tensor, has one too many, or one of another shape or dtype is refused by that name.

    Args:
        folder: a good checkpoint in one safetensors file.
        scratch: an empty folder for the bad ones.
    """
    tensors = load_file(folder / SINGLE)
    name = min(key for key in tensors if key.startswith("model.layers.1.") and key.endswith("norm.weight"))
    bad = {
        "missing": {key: tensor for key, tensor in tensors.items() if key != name},
        "unexpected": {**tensors, name + "_surplus": tensors[name].clone()},
        "shape": {**tensors, name: tensors[name][:-1].clone()},
        "dtype": {**tensors, name: tensors[name].to(torch.int8)},
    }
    for fault, content in bad.items():
        shutil.copytree(folder, scratch / fault)
        save_file(content, scratch / fault / SINGLE)
    [messages] = run_ranks(refusals, 1, family, folder, {fault: scratch / fault for fault in bad})
    for fault, message in messages.items():
        assert name in message, f"a checkpoint with the fault '{fault}' gave: {message or 'no error'}"


def refusals(rank: Rank, family: str, folder: Path, bad: Mapping[str, Path]) -> dict[str, str]:
    """What loading says of each bad checkpoint; empty if it was taken. Runs in a rank of its own."""
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.load import load_hf

    cfg, hf = run_config(family, folder, {}), read_hf_config(str(folder))
    bridge = plugins.load().models.create(family)
    megatron.initialize(cfg, *rank)
    modules = megatron.build(cfg, bridge, hf).modules
    messages = dict.fromkeys(bad, "")
    for fault, path in bad.items():
        try:
            load_hf(modules, bridge.weight_mapping(hf), path)
        except SlimeError as error:
            messages[fault] = str(error)
    return messages


def run_config(family: str, folder: Path, parallel: Parallel) -> SlimeConfig:
    """As much of a run's config as building the model takes."""
    model = ModelConfig(name=family, family=family, path=str(folder), init=Init.checkpoint)
    cfg = SlimeConfig(model=model)
    cfg.train.megatron = dict(parallel)
    return cfg


def logits(rank: Rank, family: str, folder: Path, num_layers: int | None) -> Tensor:
    """[2, tokens, vocab]: logits of `sequences`, concatenated: first in one pack, then each in a pack of its own.

    Runs in a rank of its own.
    """
    from slime_megatron.train import megatron

    cfg, hf = run_config(family, folder, {}), read_hf_config(str(folder), num_layers)
    megatron.initialize(cfg, *rank)
    return logits_of(cfg, hf)


def logits_of(cfg: SlimeConfig, hf: Mapping[str, Any]) -> Tensor:
    """`logits`, where Megatron-core has been initialised."""
    from megatron_core_portable import cpu_stands_in_for_cuda

    [module] = _load(cfg, hf)
    tokens = sequences(hf["vocab_size"])
    with cpu_stands_in_for_cuda(), torch.no_grad():
        packed = _packed_logits(module, tokens)
        alone = torch.cat([_packed_logits(module, [sequence]) for sequence in tokens])
    return torch.stack([packed, alone])


def _packed_logits(module: torch.nn.Module, tokens: Sequence[Tensor]) -> Tensor:
    from slime_megatron.train.model.packed.sequences import PackedSequences

    pack = torch.cat(list(tokens))[None]
    borders = [0, *accumulate(len(sequence) for sequence in tokens)]
    layout = PackedSequences.of(borders, 1, 0, pack.device)
    logits: Tensor = module(pack, torch.zeros_like(pack), None, packed_seq_params=layout)
    return logits[0]


def round_trips(
    rank: Rank, family: str, folder: Path, layouts: Mapping[str, Parallel]
) -> tuple[list[list[str]], list[list[str]], dict[str, list[str]]]:
    """Export order on this rank, its share where buckets are divided, and tensors that were changed, by layout.

    Runs in every rank.
    """
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.export import export_hf, take_inventory

    orders, shares, differences = [], [], {}
    for number, (layout, parallel) in enumerate(layouts.items()):
        cfg = run_config(family, folder, parallel)
        if number:
            megatron.make_groups(cfg.train.megatron, cfg.run.seed)
        else:
            megatron.initialize(cfg, *rank)
        hf = read_hf_config(str(folder))
        mapping = plugins.load().models.create(family).weight_mapping(hf)
        modules = _load(cfg, hf)
        for everywhere in (False, True):
            # Several buckets, also of tiny models.
            exported = list(export_hf(modules, mapping, bucket_bytes=100_000, everywhere=everywhere))
            if not everywhere and rank.rank > 0:
                assert not exported, "only rank 0 was to receive tensors"
                continue
            orders.append([name for name, _ in exported])
            if changed := changed_tensors(exported, folder):
                differences[f"{layout}, {everywhere=}"] = changed
        inventory = take_inventory(modules, mapping)
        for quantizer in (None, *map(quantizer_of, installed_formats())):
            everybody = tuple(range(rank.world_size))
            portions = list(inventory.export(mapping, 100_000, everybody, quantizer=quantizer).run())
            assert [last for _, last in portions][-1:] in ([], [True]), "the last bucket of a receiver says so"
            shares.append([named for tensors, _ in portions for named in tensors])
            if changed := changed_tensors(shares[-1], folder, quantizer, partly=True):
                differences[f"{layout}, {quantizer and quantizer.form}, divided"] = changed
    return orders, [[name for name, _ in share] for share in shares], differences


def installed_formats() -> list[WeightFormat]:
    """Every preset of every installed quantization."""
    found = [(item.name, item.factory()) for item in plugins.load().quantizations]
    return [quantization.read(config, name) for name, quantization in found for config in quantization.presets.values()]


def _load(cfg: SlimeConfig, hf: Mapping[str, Any]) -> Sequence[torch.nn.Module]:
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.load import load_hf

    bridge = plugins.load().models.create(cfg.model.family)
    model = megatron.build(cfg, bridge, hf)
    load_hf(model.modules, bridge.weight_mapping(hf), Path(cfg.model.path))
    return [module.eval() for module in model.modules]


def changed_tensors(
    exported: Sequence[tuple[str, Tensor]], folder: Path, quantizer: Quantizer | None = None, *, partly: bool = False
) -> list[str]:
    """Names of tensors that are not exported with exactly the bytes, shape and dtype they have in the files.

    Args:
        quantizer: those of the files are quantised by it first.
        partly: the export need not have all of them.
    """
    left = dict(exported)
    assert len(left) == len(exported), "a tensor was exported twice"
    changed = []
    for file in sorted(folder.glob("*.safetensors")):
        tensors = load_file(file)
        for name, tensor in quantized(tensors.items(), quantizer) if quantizer else tensors.items():
            if (found := left.pop(name, None)) is None:
                changed += [] if partly else [name]
            elif not _same_bytes(found, tensor):
                changed.append(name)
    return changed + sorted(left)


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    same_kind = one.shape == other.shape and one.dtype == other.dtype
    return same_kind and torch.equal(one.view(torch.uint8), other.view(torch.uint8))
