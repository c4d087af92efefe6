"""What the engines of a run tell of tokens. No torch."""

from __future__ import annotations

from slime import plugins
from slime.algo.stages import run_stages
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import SlimeConfig
from slime.models.bridge import traits_of
from slime.models.traits import Recording
from slime.topology.kept_tokens import KeptTokens


def recordings_of(cfg: SlimeConfig) -> tuple[Recording, ...]:
    """What blocks of the model can replay; nothing unless `train.routing_replay` or `observe.routing` asks for it.

    Raises:
        SlimeError: the model cannot be read.
    """
    if not (cfg.train.routing_replay or cfg.observe.routing):
        return ()
    hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
    traits = traits_of(plugins.load().models.create(cfg.model.family), hf)
    return tuple(trait.recording for trait in traits if trait.recording)


def kept_tokens(cfg: SlimeConfig) -> tuple[KeptTokens, ...]:
    """Of a run that trains on samples of the likeliest tokens alone; otherwise nothing."""
    top_k = cfg.rollout.sampling.top_k
    return (KeptTokens(top_k),) if top_k > 0 and run_stages(cfg).reinforces else ()


def numbers_told() -> tuple[Recording, ...]:
    """The recordings of the hook `slime_recordings`, of every rollout: a number for each token that is sampled."""
    registry = plugins.load().registries["recording"]
    return tuple(registry.create(name) for name in registry.names())
