"""The section `algo` of `slime.config.schema`: what is learnt from a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slime.config.choices import Importance, ImportanceTokens, KlEstimator, KlIn, LossMean
from slime.config.declare import RATE, SHARE, STEPS, Bound, key


@dataclass
class CriticConfig:
    """How the critic learns, beside what it shares with the policy: layout, precision, optimizer (`train.*`)."""

    lr: float = key(1e-5, RATE, known_as="critic.optim.lr critic_lr")
    """Learning rate of the critic, constant after its warm-up."""
    lr_warmup_steps: int = key(0, STEPS, known_as="critic_lr_warmup_iters")
    """Optimizer steps of linear warm-up of the critic's learning rate."""
    clip_grad: float = key(1.0, Bound(0, 10**6))
    """Bound of the norm of the critic's gradient; 0 clips nothing."""
    path: str | None = key(None, known_as="critic.model.path critic_load")
    """HF folder of the weights that the critic starts from, of the policy's architecture; empty: those that
    reinforcement learning starts from. Its value head starts at zero either way."""
    only_steps: int = key(0, STEPS, known_as="trainer.critic_warmup num_critic_only_steps")
    """Steps, from the first, in which the critic alone learns. The policy is measured and stays as it is."""
    offload: bool = False
    """GPUs: the one of policy and critic that does not work is in host memory. It halves what both hold of the devices,
    and takes two exchanges a step."""


@dataclass
class TeacherConfig:
    path: str | None = key(
        None,
        may_change=True,
        known_as="distillation.teacher_models.teacher_model.model_path teacher_model_name_or_path opd_teacher_load",
    )
    """HF folder or Megatron-core checkpoint (torch_dist) of the teacher of an objective that has one (`algo=opd`): a
    model of the same architecture and vocabulary, for instance `export` or `checkpoints/step-...` of another run. The
    trainers hold it in host memory. A resumed run may find it elsewhere, with the same bytes."""


@dataclass
class AlgoConfig:
    name: str = "grpo"
    """Installed objective (`slime plugins`). grpo: supervised stage if configured, then reinforcement learning; sft:
    the supervised stage only. Another one has the place of that one of them which learns from the same: rollouts, or
    demonstrations and pairs of answers."""
    options: dict[str, Any] = field(default_factory=dict)
    """The objective's own keys, typed by the schema its plugin registers."""
    advantage: str = key("grpo", known_as="algorithm.adv_estimator advantage_estimator")
    """Installed estimator (`slime plugins`): how the rewards of a step become advantages. grpo: a reward minus the mean
    of its group, see `normalize_std`."""
    advantage_options: dict[str, Any] = field(default_factory=dict)
    """The estimator's own keys, typed by the schema its plugin registers."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    normalize_std: bool = key(
        True, known_as="algorithm.norm_adv_by_std_in_grpo scale_rewards disable_grpo_std_normalization"
    )
    """Divide group-centred rewards by the group's standard deviation (GRPO). Dr. GRPO is false here and
    `loss_mean: constant`."""
    clip_low: float = key(0.2, RATE, known_as="actor.clip_ratio_low epsilon eps_clip")
    """PPO clip: the ratio of a token's probability to that under the old policy is clipped below at 1 - clip_low. With
    one optimizer step a rollout the old policy is the current one, the ratio 1, and nothing is clipped."""
    clip_high: float = key(
        0.28, Bound(0, 100, strict=True), known_as="actor.clip_ratio_high epsilon_high eps_clip_high"
    )
    """PPO clip: the same ratio is clipped above at 1 + clip_high."""
    clip_dual: float | None = key(None, Bound(1, 1000, strict=True))
    """Dual-clip bound c > 1 for negative advantages; empty switches it off."""
    entropy_coef: float = key(0.0, Bound(-1, 1), known_as="actor.entropy_coeff")
    """Weight of the entropy bonus."""
    kl_coef: float | None = key(
        None, Bound(0, 100), known_as="actor.use_kl_loss actor.kl_loss_coef beta use_kl_loss kl_loss_coef"
    )
    """Weight of the KL penalty against the reference model, the one that reinforcement learning starts from; 0 only
    measures the divergence; empty keeps no reference model."""
    kl_in: KlIn = key(KlIn.loss, known_as="algorithm.use_kl_in_reward")
    """Where the penalty stands. loss: a term of each token's loss, see `kl_estimator`. reward: `kl_coef` times the sum
    of log pi_old - log ref over its loss tokens is taken from the reward of a sample, before that is compared with
    others; with a critic each token's part from the reward of the token. Its gradient in expectation is that of
    KL(pi, ref) of whole sequences, where a term of the loss has that of each token alone."""
    kl_estimator: KlEstimator = key(KlEstimator.low_var_kl, known_as="actor.kl_loss_type kl_loss_type")
    """Estimate of KL(pi, ref) from samples of pi (Schulman 2020), with r = ref / pi. As a penalty, what counts is the
    gradient that it has in expectation. k2 = (log r)^2 / 2: that of the reverse divergence KL(pi, ref). k3 = r - 1 -
    log r: that of the forward one, KL(ref, pi). low_var_kl: k3, at most 10 (beyond it a token has no gradient). k1 =
    -log r: zero, so it can only measure (`kl_coef: 0`). With `kl_unbiased`, all have that of KL(pi, ref)."""
    kl_unbiased: bool = key(False, known_as="use_bias_correction_kl use_unbiased_kl")
    """Multiply a token's penalty with pi / pi_old, of which k1, k3 and low_var_kl take the gradient too and k2 does
    not: in expectation the gradient is that of KL(pi, ref), also after several optimizer steps (arXiv 2512.02556,
    section 3.1)."""
    loss_mean: LossMean = key(LossMean.token, known_as="actor.loss_agg_mode loss_type calculate_per_token_loss")
    """What the sum of a step's token losses is divided by. token: all loss tokens of the step; sample: those of the
    token's sample, times samples; constant: samples x `rollout.sampling.max_response_tokens`, whatever the lengths
    (Dr. GRPO; demonstrations are weighted as with token). Groups whose rewards are all equal have advantage 0 and
    still count, unless a filter drops them."""
    mask_truncated: bool = key(False, known_as="mask_truncated_completions")
    """Learn nothing of the tokens of samples that are `truncated`. They count in what the others are compared with, and
    take no part in `loss_mean` (overlong filtering, DAPO, arXiv 2503.14476, section 3.4)."""
    importance: Importance = key(
        Importance.truncate, known_as="vllm_importance_sampling_correction vllm_importance_sampling_mode use_tis"
    )
    """How the policy loss of a token is corrected that another policy than the trainer's sampled: it is multiplied with
    w = pi_old / pi_engine, of which the engine recorded its part. truncate: w clipped to [`importance_low`,
    `importance_high`] (truncated importance sampling); mask: no loss where w lies outside (IcePop: 0.5 to 5; see
    `rejected_in_mean`). KL penalty and entropy bonus are not weighted."""
    importance_tokens: ImportanceTokens | None = None
    """stale: the tokens that older weights generated, which come with `rollout.over_sampling` above 1; all: the others
    too, whose w differs from 1 by the numerical difference of engine and trainer alone. Empty: all where engines
    quantise (`rollout.fp8`, SGLang's `quantization`, `kv_cache_dtype`) and for a mixture of experts, where that
    difference biases the gradient; otherwise stale, because there the correction would add more noise than it
    removes."""
    importance_low: float = key(0.0, SHARE, known_as="tis_clip_low")
    """Lower bound of w, at most 1."""
    importance_high: float = key(2.0, Bound(1, 10**6), known_as="vllm_importance_sampling_cap tis_clip")
    """Upper bound of w, at least 1."""
    sequence_bound: float | None = key(None, Bound(1, 10**6, strict=True))
    """Sequence rejection: all tokens of a sequence are without policy loss where the geometric mean of w over its loss
    tokens lies outside [1 / sequence_bound, sequence_bound] (arXiv 2512.23075); empty rejects none. See
    `rejected_in_mean` for what they do to the mean."""
    sequence_veto: float | None = key(None, Bound(0, 1, strict=True))
    """Sequence rejection, too: where w of a single loss token lies below this, for instance 1e-4."""
    opsm_bound: float | None = key(None, Bound(0, 1000, strict=True), known_as="use_opsm opsm_delta")
    """Off-policy sequence masking (arXiv 2512.02556, section 3.1): tokens of negative advantage are without policy loss
    where the mean of log pi_engine - log pi over the loss tokens of their sequence is above this; empty masks none. In
    `loss_mean` they keep their place."""
    rejected_in_mean: bool = True
    """Whether the tokens that `importance: mask`, `sequence_bound` and `sequence_veto` leave without policy loss keep
    their place in its mean: the step is then as small as there is little to trust. false: the mean is over the tokens
    that are left, of all ranks and micro-batches of the optimizer step, weighted in proportion as `loss_mean` has it.
    That takes a pass for pi_old also with one optimizer step a rollout. KL penalty and entropy bonus are over all
    tokens either way."""
    rollout_logprobs_as_old: bool = False
    """Use the engine's log-probs as the old policy instead of the trainer's. The PPO ratio then compares with the
    weights that sampled the token, stale or not, and no importance weight is added."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
