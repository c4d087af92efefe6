"""What a run's engines hold in FP8, and where the matrices of a rank come out in whole blocks."""

from __future__ import annotations

from slime.config.fp8 import KEY, Fp8Format, fp8_format
from slime.config.hf import read_hf_config
from slime.config.needs import config_folder
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError

IN_BLOCKS = "block"
"""Value of `rollout.fp8` that asks for FP8 of a model without an FP8 folder."""
_OF_THE_FOLDER = frozenset({KEY, "_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"})
"""Keys of a config.json that may differ between a trained and an FP8 folder of one model."""


def rollout_format(cfg: SlimeConfig) -> Fp8Format | None:
    """How engines hold weights: `rollout.fp8`, None if as they are trained.

    Raises:
        SlimeError: the folder that it names has no `quantization_config`, one that engines cannot be published to, or
            belongs to another model.
    """
    if cfg.rollout.fp8 is None:
        return None
    if cfg.rollout.fp8 == IN_BLOCKS:
        return Fp8Format()
    where = f"rollout.fp8={cfg.rollout.fp8}"
    hf, trained = read_hf_config(cfg.rollout.fp8), read_hf_config(config_folder(cfg.model))
    for key in sorted(hf.keys() & trained.keys() - _OF_THE_FOLDER):
        if hf[key] != trained[key]:
            what = f"its config.json has '{key}: {hf[key]}', that of the trained model {trained[key]}"
            raise SlimeError(what, where=where, todo=f"Name an FP8 folder of that model, or '{IN_BLOCKS}'.")
    if not hf.get(KEY):
        raise SlimeError(f"its config.json has no '{KEY}'", where=where, todo=f"Set rollout.fp8={IN_BLOCKS}.")
    return fp8_format(hf[KEY], where)
