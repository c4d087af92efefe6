"""The loop of a run, top to bottom: supervise, then generate -> reward -> train -> publish, again and again."""

from __future__ import annotations

from contextlib import ExitStack

from slime.checkpoints import Checkpoint
from slime.config.schema import SlimeConfig
from slime.observe import report
from slime.observe.alarm import alarm
from slime.observe.progress import Progress
from slime.observe.stopwatch import Stopwatch
from slime.rollout.samples import to_train_samples
from slime.session import Position, Session


def train(cfg: SlimeConfig) -> str:
    """Run `cfg` to its end, from its newest checkpoint if there is one; returns the summary that was printed.

    Raises:
        SlimeError: whatever stopped it; everything up to the last checkpoint is in the run directory.
    """
    with ExitStack() as stack:
        session = Session.open(cfg, stack)
        supervise(session)
        if cfg.algo.name != "sft":
            reinforce(session)
        session.export()
        return report.write(session.run)


def evaluate(cfg: SlimeConfig, checkpoint: Checkpoint | None = None) -> dict[str, float]:
    """The held-out metrics of the model that `cfg` starts from.

    Args:
        checkpoint: whose weights `cfg.model.weights` names.

    Raises:
        SlimeError: the checkpoint is damaged, or whatever stopped the evaluation.
    """
    with ExitStack() as stack:
        session = Session.open(cfg, stack, log_metrics=False)
        if checkpoint:
            session.position = Position(**checkpoint.driver_state()["position"])
        session.publish(session.position.rl_step)
        with Progress("eval", len(session.held_out), live=cfg.run.progress) as bar:
            return session.evaluate(bar)


def supervise(session: Session) -> None:
    """The supervised stage: next-token loss on demonstrations, until `sft.num_steps`. Where it is the whole run, the
    held-out prompts are scored before the first step and after the last."""
    cfg, position = session.cfg, session.position
    last, scores = cfg.sft.num_steps, cfg.algo.name == "sft" and bool(session.held_out)
    if position.sft_step == last:
        return
    with Progress("sft", last, position.sft_step, live=cfg.run.progress) as bar:
        if position.sft_step == 0 and scores:
            session.publish(0)
            session.log_values("sft", 0, session.evaluate(bar))
        for step in range(position.sft_step + 1, last + 1):
            watch = Stopwatch()
            with watch("pack"):
                (batch,) = session.pack(session.demonstrations.take(cfg.sft.batch_size))
            with watch("train"):
                values = session.train_sft(batch, step)
            position.sft_step = step
            if step == last and scores:
                with watch("publish"):
                    values |= session.publish(step)
                with watch("eval"):
                    values |= session.evaluate(bar)
            bar.step(step, session.log("sft", step, values, watch, batch.num_loss_tokens))
            if _due(step, last, cfg.train.checkpoint.interval):
                session.checkpoint()


def reinforce(session: Session) -> None:
    """The reinforcement-learning stage, until `run.num_steps`."""
    cfg, position = session.cfg, session.position
    if position.rl_step == cfg.run.num_steps:
        return
    session.prepare_reinforcement()
    session.publish(position.rl_step)
    with Progress("rl", cfg.run.num_steps, position.rl_step, live=cfg.run.progress) as bar:
        if position.rl_step == 0 and session.held_out:
            session.log_values("rl", 0, session.evaluate(bar))
        for step in range(position.rl_step + 1, cfg.run.num_steps + 1):
            _step(session, step, bar)


def _step(session: Session, step: int, bar: Progress) -> None:
    """One step: it starts with every engine at weight version `step - 1` and ends with all of them at `step`."""
    cfg, watch = session.cfg, Stopwatch()
    collected = session.collect(step - 1, bar)
    watch.add_all(collected.stats)
    bar.samples([sample for group in collected.groups for sample in group.samples])
    with watch("pack"):
        samples = to_train_samples(collected.groups, cfg.algo, step - 1, cfg.rollout.max_weight_lag)
        batches = session.pack(samples, cfg.train.steps_per_rollout)
    bar.status("train")
    values = session.train_rl(batches, step)
    watch.add_all(values)
    if problem := alarm(cfg, values, step):
        session.log_values("rl", step, collected.stats | values)
        raise problem
    bar.status("publish")
    with watch("publish"):
        values |= session.publish(step)
    moved = session.offload_trainers()
    watch.add_all(moved)
    session.position.rl_step = step
    if session.held_out and _due(step, cfg.run.num_steps, cfg.eval.interval):
        with watch("eval"):
            values |= session.evaluate(bar)
    num_tokens = collected.stats["rollout/num_tokens"]
    bar.step(step, session.log("rl", step, collected.stats | values | moved, watch, num_tokens))
    if _due(step, cfg.run.num_steps, cfg.train.checkpoint.interval):
        session.checkpoint()


def _due(step: int, last: int, interval: int | None) -> bool:
    """Whether what happens after the last step and every `interval` steps (if above 0; None: never) happens now."""
    return interval is not None and (step == last or (interval > 0 and step % interval == 0))
