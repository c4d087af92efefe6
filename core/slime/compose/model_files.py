"""Files of models, looked at before a run: of weights the headers are read and none of the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime import plugins
from slime.algo.stages import run_stages
from slime.config.hf import config_folder, read_hf_config
from slime.config.paths import exists, resolve
from slime.config.schema import Init
from slime.errors import SlimeError
from slime.models.mapping import Shard, WeightMapping
from slime.sizes.model import keywords_of
from slime.sizes.parameters import shape_of
from slime.topology.quantization import folders
from slime.topology.topology import Topology
from slime.weights.elsewhere import has_weights
from slime.weights.hf_check import check_tensors
from slime.weights.hf_files import HfFiles


def weight_needs(topology: Topology) -> Iterator[SlimeError]:
    """Downloads that broke off, and tensors that are not the model's, by name, type or shape: of safetensors the
    headers are read, 0.4 s for 60,000 tensors in 60 files."""
    cfg = topology.config
    if cfg.model.init is Init.checkpoint and cfg.model.weights is None and exists(cfg.model.path):
        hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
        bridge, own = plugins.load().models.create(hf["model_type"]), run_stages(cfg).own_model
        mapping = bridge.weight_mapping(hf)
        try:
            files = HfFiles(resolve(cfg.model.path))
            check_tensors(files, own.mapping(mapping) if own else mapping)
            check_shapes(files, mapping, keywords_of({}, bridge, hf))
        except SlimeError as need:
            yield need
    others = {f"rollout.engines.{group.name}.model": group.model for group in topology.frozen if group.model}
    for key, folder in (folders(cfg.rollout) | others).items():
        if exists(folder) and has_weights(resolve(folder)):
            try:
                HfFiles(resolve(folder))
            except SlimeError as need:
                yield need.under(key)


def check_shapes(files: HfFiles, mapping: WeightMapping, model: Mapping[str, Any]) -> None:
    """Whether the tensors have the shapes that config.json tells; those of a block that states none are left out.

    Args:
        model: Megatron's keywords, with `vocab_size`.

    Raises:
        SlimeError: one has another; the embeddings are named first, for a vocabulary is what is changed most.
    """
    for entry in mapping.entries:
        if entry.rule.shape is None or not entry.rule.exported:
            continue
        wanted = entry.rule.layout.hf_shapes(shape_of(entry.rule, model), Shard())
        for name, shape in zip(entry.hf, wanted, strict=True):
            found = files.tensors.get(name)
            if found and found.shape != shape:
                where, todo = str(files.folder / found.file), "Its config.json belongs to another checkpoint."
                if shape[0] == model["vocab_size"] and found.shape[1:] == shape[1:]:
                    rows = found.shape[0]
                    todo = f"It has {rows} rows: was vocab_size of config.json, {shape[0]}, changed, or the embeddings?"
                what = f"'{name}' has shape {list(found.shape)}, config.json tells {list(shape)}"
                raise SlimeError(what, where=where, todo=todo)
