"""A trainer of one rank with the real tiny dense family, and what it trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_testing.ranks import Rank

HF = {
    "attention_bias": True,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "model_type": "glm4",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
    "vocab_size": 96,
}


def write_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(HF, folder)
    return folder


def start(rank: Rank, model: Path, **algo: Any) -> Any:
    from slime.config.schema import AlgoConfig, SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.run.num_steps = "glm4", str(model), 50
    cfg.train.optimizer, cfg.algo = {"lr": 1e-3}, AlgoConfig(**algo)
    cfg.sft.num_steps, cfg.sft.lr = 50, 3e-3
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    return trainer


def packed(
    trainer: Any, samples: list[Any], *, steps: int = 1, max_tokens: int = 200, share_below: float = 0.0
) -> list[Any]:
    from slime.train.packing import pack

    return pack(
        samples,
        num_dp=1,
        align=1,
        max_tokens=max_tokens,
        loss_mean=trainer.cfg.algo.loss_mean,
        num_optimizer_steps=steps,
        share_below=share_below,
    )


def recorded(seed: int = 0) -> list[Any]:
    from slime_testing.recorded import recorded_samples

    return recorded_samples(16, HF["vocab_size"], seed=seed)


def with_transformers_logprobs(samples: list[Any], temperature: float) -> list[Any]:
    """The samples with log-probs of transformers' model of the same weights, at a temperature."""
    import torch

    from slime_testing.models import random_model

    model, found = random_model(HF).double(), []
    for sample in samples:
        tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
        with torch.no_grad():
            logp = (model(tokens[None]).logits[0, -count - 1 : -1] / temperature).log_softmax(1)
        own = logp.gather(1, tokens[-count:, None])[:, 0].float().numpy()
        found.append(sample.with_columns(rollout_logprobs=own))
    return found
