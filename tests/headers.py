"""Weights as far as a plan reads them: names and types."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from slime import plugins
from slime.config.hf import read_hf_config


def write_headers(folder: Path) -> None:
    """A file with every tensor of the folder's model, each of one number."""
    hf = read_hf_config(str(folder))
    names = plugins.load().models.create(hf["model_type"]).weight_mapping(hf).hf_names
    save_file({name: np.zeros(1, np.float32) for name in names}, folder / "model.safetensors")
