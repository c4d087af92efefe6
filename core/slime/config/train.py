"""The section `train` of `slime.config.schema`: how the model learns.

Without omegaconf, because a plugin's keys of the section are known before a config is composed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slime.config.choices import LrDecay
from slime.config.declare import BATCH, PERIOD, SAMPLES, SECONDS, STEPS, TOKENS, Bound, key

OPTIMIZER_DEFAULTS = {"optimizer": "adam", "lr": 1e-6, "min_lr": 0.0, "weight_decay": 0.0}
"""What slime puts in the place of Megatron-core's own defaults, which are made for pre-training."""


@dataclass
class CheckpointConfig:
    interval: int | None = key(20, STEPS, known_as="trainer.save_freq save_steps save_interval")
    """Save every this many steps and at the end of each stage; 0 saves only there, empty never."""
    keep: int = key(2, BATCH)
    """How many checkpoints stay on disk."""
    async_save: bool = key(True, may_change=True)
    """Write a checkpoint while the run goes on, from a copy in host memory; it counts once it is whole."""
    in_memory_every: int = key(0, STEPS, may_change=True)
    """Copy what a checkpoint has into the memory of the trainers' hosts every this many steps, and once more into that
    of another host; trainers that die return to it inside the run. 0: they return to the newest checkpoint."""
    export_hf: bool = True
    """Write the final model as an HF folder that transformers loads."""


@dataclass
class TrainConfig:
    megatron: dict[str, Any] = key(make=dict, may_change="*_parallel* recompute_*")
    """Fields of Megatron-core's TransformerConfig / MLATransformerConfig: parallel sizes, precision, ..."""
    optimizer: dict[str, Any] = key(
        make=lambda: dict(OPTIMIZER_DEFAULTS), may_change="lr min_lr weight_decay clip_grad"
    )
    """Fields of Megatron-core's OptimizerConfig: lr, min_lr, weight_decay, adam_beta1, clip_grad, ...; where slime has
    no default, Megatron-core's holds. clip_grad bounds the norm over all parameters that learn, those of blocks
    with a loss of their own among them: their gradients take part in scaling the policy's."""
    ddp: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-core's DistributedDataParallelConfig."""
    max_tokens_per_micro_batch: int = key(
        4096, TOKENS, may_change=True, known_as="max_tokens_per_gpu actor.ppo_max_token_len_per_gpu"
    )
    """Strict cap on the tokens of a packed micro-batch on one context-parallel group (padding included)."""
    share_prompts: bool | None = key(None, may_change=True, known_as="actor.use_prefix_grouper")
    """Pack the samples of a group behind one copy of their prompt, and segments of an attempt behind one copy of what
    they begin with, which is computed once: exact but for rounding. Not with context parallelism, nor with blocks of
    plugins that need sequences whole. `slime plan` counts the keys that each sample reads of its prompt, and packs hold
    at most four keys a row. Empty: where the model can, on GPUs in steps of which that leaves 80 % of the tokens or
    less."""
    steps_per_rollout: int = key(
        1,
        SAMPLES,
        known_as="actor.ppo_mini_batch_size steps_per_generation gradient_accumulation_steps num_steps_per_rollout",
    )
    """Optimizer steps the samples of one rollout are split into."""
    epochs_per_rollout: int = key(1, SAMPLES, known_as="actor.ppo_epochs critic.ppo_epochs num_iterations")
    """How often a rollout's samples are trained on, each time in `steps_per_rollout` optimizer steps, of the critic as
    well. Old log-probs and advantages are those from before the first."""
    logprob_chunk_tokens: int = key(8192, TOKENS, may_change=True, known_as="log_probs_chunk_size")
    """The output head computes logits in chunks of this many tokens, which bounds memory. The backward pass uses the
    stored logits of a micro-batch's last chunk and recomputes those of the others. Results do not depend on it."""
    mtp_loss_scale: float | None = key(None, Bound(0, 100, strict=True))
    """Weight of the multi-token prediction layer's loss, which trains that layer alone; 0.2 is usual. Its gradients
    count in `train.optimizer.clip_grad`, as the policy's do. Empty: a layer that the checkpoint has stays as it is,
    also in what is exported and published."""
    routing_replay: bool = key(False, may_change=True)
    """Train mixtures of experts with the experts that the engines chose for each token, so that both sides compute the
    same function (docs/routing-replay.md). The reference model chooses by itself."""
    lr_warmup_steps: int = key(0, STEPS, may_change=True, known_as="lr_warmup_iters")
    """Optimizer steps w of linear warm-up: step n has n / (w + 1) of the peak, so that no step has 0."""
    lr_decay: LrDecay = key(LrDecay.constant, may_change=True, known_as="lr_decay_style")
    """How the learning rate falls from `lr` to `min_lr` after warm-up."""
    lr_decay_steps: int | None = key(None, PERIOD, may_change=True, known_as="lr_decay_iters")
    """Optimizer steps of the policy at which the decay ends; empty means the whole run."""
    checkpoint: CheckpointConfig = key(make=CheckpointConfig, may_change=True)
    restarts: int = key(2, Bound(0, 1000), may_change=True)
    """Times within `restart_window_s` that all trainer ranks are started again because one has died, or hangs; the run
    returns to its newest checkpoint, and engines stay. One more death ends the run, and with 0 the first."""
    restart_window_s: float = key(3600.0, SECONDS, may_change=True)
    """Seconds for which a death of a trainer rank counts. One in a step that the run has not passed since counts on: it
    may be what that step does."""

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of a rollout, over all epochs."""
        return self.steps_per_rollout * self.epochs_per_rollout
