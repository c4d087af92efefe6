"""Rules about what is learnt, scored and kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slime import plugins
from slime.algo.grpo import Grpo
from slime.algo.stages import MakesColumns, estimator_of, objective_of, run_stages
from slime.config.paths import resolve
from slime.config.schema import (
    AlgoConfig,
    CheckpointConfig,
    EvalConfig,
    Init,
    KlEstimator,
    KlIn,
    LossMean,
    LrDecay,
    RolloutConfig,
    SftConfig,
    SlimeConfig,
    TrainConfig,
)
from slime.errors import SlimeError
from slime.objective import Objective
from slime.topology.adapters import adapters_of
from slime.topology.kept_tokens import MOST_KEPT
from slime.topology.topology import Topology
from slime.types import RL

GREEDY_BELOW = 1e-6
"""SGLang samples greedily below this temperature."""


def learning_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Runs that would learn nothing, something else than they say, or keep nothing of it."""
    stages = run_stages(cfg)
    yield from _schedules(cfg.train, cfg.sft, stages[RL].policy_steps if stages.reinforces else None)
    if stages.own_model is not None:
        yield from _own_model(cfg.algo.name, cfg.eval, cfg.train)
    yield from _steps(cfg.sft, cfg.run.num_steps if stages.reinforces else None)
    if stages.reinforces:
        yield from _advantages(cfg.algo, cfg.rollout.samples_per_prompt)
        yield from _losses(cfg.algo)
        yield from _means(cfg.algo)
        if stages.have_critic:
            yield from _critic(cfg.algo, cfg.run.num_steps, cfg.train)
        yield from _sampled_policy(cfg.rollout, objective_of(cfg.algo))
    yield from _kept(cfg.train.checkpoint, cfg.model.init)
    yield from _greedy_evaluation(cfg.eval)


def learning_warnings(topology: Topology, *, has_experts: bool) -> Iterator[SlimeError]:
    """Runs that learn, under a bound that is not made for their model."""
    cfg = topology.config
    algo, steps = objective_of(cfg.algo), cfg.train.optimizer_steps
    if has_experts and steps > 1 and isinstance(algo, Grpo) and not cfg.train.routing_replay:
        what = f"clips the ratio of single tokens over {steps} optimizer steps a rollout, which routers of experts make"
        is_kin = type(algo) is Grpo and not run_stages(cfg).have_critic  # gspo has no critic and no teacher
        todo = "Choose algo=gspo, whose ratio is that of a sequence, or" if is_kin else "Set"
        todo += " train.routing_replay=true (docs/algorithms.md)."
        yield SlimeError(f"{what} noisy without routing replay", where=f"algo.name={cfg.algo.name}", todo=todo)


def _schedules(train: TrainConfig, sft: SftConfig, policy_steps: int | None) -> Iterator[SlimeError]:
    """Of the policy, unless it takes no steps by reinforcement (None), and of the supervised stage."""
    if train.optimizer.get("lr", 0) is None:
        yield SlimeError("is null", where="train.optimizer.lr", todo="Give a number, for instance 1e-6.")
    lr, min_lr = train.optimizer.get("lr"), train.optimizer.get("min_lr") or 0
    if lr is not None and lr < min_lr and train.lr_decay is not LrDecay.constant:  # with which it does nothing
        where, todo = "train.optimizer.min_lr", f"Lower it to at most {lr}."
        yield SlimeError(f"is {min_lr}, above train.optimizer.lr={lr}", where=where, todo=todo)
    reinforced = ("train", train.lr_decay, train.lr_warmup_steps, train.lr_decay_steps or policy_steps)
    supervised = ("sft", sft.lr_decay, sft.lr_warmup_steps, sft.num_steps)
    for section, decay, warmup_steps, steps in (supervised,) if policy_steps is None else (reinforced, supervised):
        if steps and warmup_steps >= steps:
            what = f"is {warmup_steps}, which leaves none of {steps} steps"
            what += " at the full learning rate" if decay is LrDecay.constant else " for the decay"
            yield SlimeError(what, where=f"{section}.lr_warmup_steps", todo=f"Lower it below {steps}.")


def _steps(sft: SftConfig, num_steps: int | None) -> Iterator[SlimeError]:
    """Of the supervised stage, and those of reinforcement (None: there is no such stage)."""
    if num_steps is None:
        if sft.path is None or sft.num_steps == 0:
            yield SlimeError("algo=sft has nothing to do", where="sft", todo="Set sft.path and sft.num_steps.")
        return
    if sft.num_steps > 0 and sft.path is None:
        todo = "Set sft.path, or sft.num_steps=0."
        yield SlimeError(f"{sft.num_steps} supervised steps without demonstrations", where="sft.path", todo=todo)
    if num_steps < 1:
        todo = "Set it to 1 or more, or choose algo=sft."
        yield SlimeError("there is no step to run", where="run.num_steps", todo=todo)


def _advantages(algo: AlgoConfig, samples_per_prompt: int) -> Iterator[SlimeError]:
    if samples_per_prompt < (least := estimator_of(algo).min_samples):
        what = f"algo.advantage={algo.advantage} compares at least {least} samples of a prompt"
        yield SlimeError(what, where="rollout.samples_per_prompt", todo=f"Set it to {least} or more.")


def rate_warnings(
    train: TrainConfig, sft: SftConfig, typed: Collection[str], *, reinforces: bool
) -> Iterator[SlimeError]:
    """Learning rates that are a task's for whole models, where the command line (`typed`: its keys) asks for adapters
    and names none."""
    homes = [f"train.{item.name}." for item in plugins.load().adapters]
    if not adapters_of(train) or not any(key.startswith(home) for key in typed for home in homes):
        return
    rates = {"sft.lr": sft.lr} if sft.num_steps else {}
    lr = train.optimizer.get("lr")
    rates |= {"train.optimizer.lr": lr} if lr and reinforces else {}
    for key, rate in rates.items():
        if key not in typed:
            what = f"is {rate:g}, as for training the whole model; adapters take about ten times that"
            yield SlimeError(what, where=key, todo=f"Set {key}={10 * rate:g}, or {key}={rate:g} to keep it.")


def _own_model(name: str, evaluation: EvalConfig, train: TrainConfig) -> Iterator[SlimeError]:
    if evaluation.path is not None:
        what = f"the model of algo={name} predicts no tokens, so no engine can answer with it"
        yield SlimeError(what, where="eval.path", todo="Set it to null; sft.eval_path measures on rows.")
    if adapters_of(train):
        what = f"the model of algo={name} trains whole, and has no place for them"
        yield SlimeError(what, where="adapters", todo="Train without them.")


def _critic(algo: AlgoConfig, num_steps: int, train: TrainConfig) -> Iterator[SlimeError]:
    """Whether the critic can begin, and the policy ever learns."""
    critic = algo.critic
    if adapters_of(train):
        what, todo = "the critic would need weights of its own beside adapters", "Train without one of them."
        yield SlimeError(what, where=f"algo.advantage={algo.advantage}", todo=todo)
    if num_steps and critic.only_steps >= num_steps:
        what = f"is {critic.only_steps}, which leaves none of {num_steps} steps for the policy"
        yield SlimeError(what, where="algo.critic.only_steps", todo=f"Lower it below {num_steps}.")
    if critic.lr_warmup_steps >= (steps := num_steps * train.optimizer_steps) > 0:
        what = f"is {critic.lr_warmup_steps}, which leaves none of {steps} steps at the full learning rate"
        yield SlimeError(what, where="algo.critic.lr_warmup_steps", todo=f"Lower it below {steps}.")
    try:
        folder = resolve(critic.path) if critic.path is not None else None
    except SlimeError as problem:
        yield problem.under("algo.critic.path")
        return
    if folder and not any(folder.glob("*.safetensors")):
        todo = "Name an HF folder with weights, or leave it empty."
        yield SlimeError(f"there are no *.safetensors files in {folder}", where="algo.critic.path", todo=todo)


def _losses(algo: AlgoConfig) -> Iterator[SlimeError]:
    in_loss = algo.kl_coef and algo.kl_in is KlIn.loss and not algo.kl_unbiased
    if in_loss and algo.kl_estimator is KlEstimator.k1:
        todo = "Choose k2, k3 or low_var_kl, algo.kl_unbiased=true, or algo.kl_coef=0 to measure only."
        where = "algo.kl_estimator"
        yield SlimeError("k1 is no penalty: its gradient is zero in expectation, so only noise", where=where, todo=todo)


def _means(algo: AlgoConfig) -> Iterator[SlimeError]:
    """Whether the mean over what is left is known before the step."""
    if algo.rejected_in_mean:
        return
    where, todo = "algo.rejected_in_mean", "Remove one of them."
    if algo.opsm_bound is not None:
        what = "false needs what is rejected before the step, and algo.opsm_bound asks the policy that the step changes"
        yield SlimeError(what, where=where, todo=todo)
    if algo.loss_mean is LossMean.constant:
        yield SlimeError("false has no mean over tokens to change with algo.loss_mean=constant", where=where, todo=todo)


def _sampled_policy(rollout: RolloutConfig, objective: Objective) -> Iterator[SlimeError]:
    """Whether samples are drawn from the very distribution that the trainer computes: softmax(logits / temperature), or
    the same of the tokens that engines say they drew from (`slime.topology.kept_tokens`)."""
    sampling = rollout.sampling
    if sampling.temperature < GREEDY_BELOW:
        where, todo = "rollout.sampling.temperature", "Set it above 0."
        yield SlimeError("greedy samples of one prompt are all the same", where=where, todo=todo)
    key, todo = "rollout.sampling.top_k", "Set it to -1, and top_p to 1; eval.sampling's are free."
    if sampling.top_k == -1:
        if sampling.top_p != 1:
            what = f"is {sampling.top_p}, but trainers must be told which tokens SGLang kept, and it tells with a top_k"
            todo = (
                f"Set {key}=256, for instance, the most that it keeps then, or this to 1; eval.sampling.top_p is free."
            )
            yield SlimeError(what, where="rollout.sampling.top_p", todo=todo)
    elif sampling.top_k > MOST_KEPT:
        what = f"is {sampling.top_k}: engines tell trainers of at most {MOST_KEPT} tokens which they were"
        yield SlimeError(what, where=key, todo="Set it to 256, or to -1 and top_p to 1.")
    elif rollout.backend != "sglang":
        what = f"is {sampling.top_k}, but only SGLang tells trainers which tokens it kept"
        yield SlimeError(what, where=key, todo=todo)
    elif any(column.width for column in objective.needs) or (isinstance(objective, MakesColumns) and objective.makes):
        what = f"is {sampling.top_k}, but this objective compares with log-probs of a teacher over all tokens"
        yield SlimeError(what, where=key, todo=todo)


def _kept(checkpoint: CheckpointConfig, init: Init) -> Iterator[SlimeError]:
    """A trial with random weights may go without; `slime plan` says it."""
    if init is Init.checkpoint and checkpoint.interval is None and not checkpoint.export_hf:
        where = "train.checkpoint.interval, train.checkpoint.export_hf"
        todo = "Set one of them; 'slime probe' measures a step without training."
        yield SlimeError("nothing that is learnt is kept: neither checkpoints nor an export", where=where, todo=todo)


def _greedy_evaluation(evaluation: EvalConfig) -> Iterator[SlimeError]:
    for home, own in evaluation.all().items():
        if own.samples_per_prompt > 1 and own.sampling.temperature < GREEDY_BELOW:
            what = f"is {own.samples_per_prompt}, but at {home}.sampling.temperature=0 all answers"
            what += " to a prompt are equal"
            todo = "Set it to 1, or the temperature above 0."
            yield SlimeError(what, where=f"{home}.samples_per_prompt", todo=todo)
