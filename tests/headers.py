"""Weights as far as a plan reads them: names, types and shapes."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slime import plugins
from slime.config.hf import read_hf_config
from slime.models.mapping import Shard
from slime.sizes.model import keywords_of
from slime.sizes.parameters import shape_of


def write_headers(folder: Path) -> None:
    """A file with every tensor of the folder's model, of zeros; of one number where its block states no shape."""
    hf = read_hf_config(str(folder))
    bridge = plugins.load().models.create(hf["model_type"])
    model, tensors = keywords_of({}, bridge, hf), {}
    for entry in bridge.weight_mapping(hf).entries:
        shape = shape_of(entry.rule, model) if entry.rule.shape else None
        shapes = entry.rule.layout.hf_shapes(shape, Shard()) if shape else [(1,)] * len(entry.hf)
        tensors |= {name: np.zeros(each, np.float32) for name, each in zip(entry.hf, shapes, strict=True)}
    save_file(tensors, folder / "model.safetensors")
