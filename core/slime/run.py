"""The loop of a run, top to bottom: supervise, then generate -> reward -> train -> publish, again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from slime.algo.stages import Stage, made_by, with_columns
from slime.compose.compose import Composed
from slime.ending import in_order
from slime.events import Complete, Samples
from slime.objective import TrainsOn
from slime.observe.alarm import alarm
from slime.observe.stopwatch import Stopwatch
from slime.opening import Run, open_run
from slime.sampling.samples import compare, missing_shares, spread, with_advantages, with_numbers
from slime.topology.recordings import kept_tokens, numbers_told, recordings_of
from slime.train.packing import skipped_steps
from slime.types import Group


def train(composed: Composed) -> None:
    """Run to the end, from the newest checkpoint if there is one; SlimeError where something stops it."""
    with ExitStack() as stack:
        run = open_run(composed, stack)
        with in_order(run.events, run.cfg.run.stop_at), run.learner.settling(), run.staying:
            run.trainers.survive(partial(_to_the_end, run))
        run.folder.require_intact()
        run.events.publish(Complete())


def _to_the_end(run: Run) -> None:
    """All stages from where the run stands, and the export."""
    for stage in run.stages:
        LOOPS[stage.objective.trains_on](run, stage)
    run.learner.settle()
    run.learner.export()


def supervise(run: Run, stage: Stage) -> None:
    """A supervised stage: demonstrations or pairs, until `sft.num_steps`. Where it is the whole run, the held-out
    prompts are scored before the first step and after the last. Where it is not, engines may start meanwhile."""
    cfg, learner, position = run.cfg, run.learner, run.learner.position
    last, scores = stage.num_steps, bool(run.data.held_out) and not run.stages.reinforces
    if position.sft_step == last:
        return
    assert run.data.demonstrations, "compose() asks for demonstrations"
    learner.prepare(stage)
    with run.events.stage(stage.name, last, position.sft_step):
        if position.sft_step == 0:
            found = _on_held_out_rows(run, stage, 0)
            if scores:
                run.generation.publish(0)
                found |= run.generation.evaluate(0)
            if found:
                run.log.incomplete(stage.name, 0, found)
        for step in range(position.sft_step + 1, last + 1):
            watch = Stopwatch()
            with watch("pack"):
                rows = with_columns(stage.objective, run.data.demonstrations.take(cfg.sft.batch_size))
                batches = learner.pack(rows, whole_attempts=stage.trains_on_pairs)
            with watch("train"):
                if run.engines:
                    run.engines.look()
                values = learner.train(batches, step, stage)
            run.log.late(learner.settle(if_written=True))
            position.sft_step = step
            if _due(step, last, cfg.train.checkpoint.interval):
                with watch("eval"):
                    values |= _on_held_out_rows(run, stage, step)
            if step == last and scores:
                with watch("publish"):
                    values |= run.generation.publish(step)
                with watch("eval"):
                    values |= run.generation.evaluate(step)
            run.log.complete(stage.name, step, values, watch, batches[0].num_loss_tokens)
            if _due(step, _last(run, stage, step), cfg.train.checkpoint.interval):
                run.log.late(learner.checkpoint())
            run.log.late(learner.copy())
            _stop_if_asked(run, stage, step)


def _on_held_out_rows(run: Run, stage: Stage, step: int) -> dict[str, float]:
    """Metrics of the supervised stage's objective on `sft.eval_path`, `eval/...`; none without it."""
    if run.data.measured is None:
        return {}
    rows = with_columns(stage.objective, run.data.measured.all())
    return run.learner.measure(run.learner.pack(rows, whole_attempts=stage.trains_on_pairs), step, stage)


def reinforce(run: Run, stage: Stage) -> None:
    """A reinforcement-learning stage, until `run.num_steps`."""
    learner, position = run.learner, run.learner.position
    if position.rl_step == stage.num_steps:
        return
    learner.prepare(stage)
    run.generation.publish(position.rl_step)
    with run.events.stage(stage.name, stage.num_steps, position.rl_step):
        if position.rl_step == 0 and run.data.held_out:
            run.log.incomplete(stage.name, 0, run.generation.evaluate(0))
        for step in range(position.rl_step + 1, stage.num_steps + 1):
            _step(run, stage, step)


LOOPS = {TrainsOn.demonstrations: supervise, TrainsOn.pairs: supervise, TrainsOn.rollouts: reinforce}


def _step(run: Run, stage: Stage, step: int) -> None:
    """One step: it starts with every engine at weight version `step - 1` and ends with all of them at `step`."""
    cfg, learner, generation, watch = run.cfg, run.learner, run.generation, Stopwatch()
    collected = generation.collect(step - 1)
    watch.add_all(collected.stats)
    with ExitStack() as told:  # at its end at the latest, also of a step that fails before trainers begin
        told.callback(run.events.publish, Samples(step, collected.groups, collected.judged))
        if generation.ahead:  # subscribers have no bound of time in another thread
            told.close()
        values = learn(run, stage, step, collected.groups, watch, told.close)
    if problem := alarm(cfg.observe.logprob_alarm, run.topology.groups, values, step):
        run.log.incomplete(stage.name, step, collected.stats | values)
        raise problem
    run.events.phase("publish")
    with watch("publish"):
        values |= generation.publish(step)
    moved = learner.offload()
    watch.add_all(moved)
    run.log.late(learner.settle(if_written=True))
    learner.position.rl_step = step
    if run.data.held_out and _due(step, stage.num_steps, cfg.eval.interval):
        with watch("eval"):
            values |= generation.evaluate(step)
    num_tokens = collected.stats["rollout/num_tokens"]
    run.log.complete(stage.name, step, collected.stats | values | moved, watch, num_tokens)
    if _due(step, _last(run, stage, step), cfg.train.checkpoint.interval):
        run.log.late(learner.checkpoint(generation.beside))
    run.log.late(learner.copy(generation.beside))
    _stop_if_asked(run, stage, step)


def learn(
    run: Run,
    stage: Stage,
    step: int,
    groups: Sequence[Group],
    watch: Stopwatch,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Train one step on the groups that were collected for it; returns metrics. Depends on nothing but them, the
    trainers' state and the estimator's, so that a step can be replayed. `meanwhile` is called while trainers work."""
    cfg, learner = run.cfg, run.learner
    with watch("pack"):
        groups = spread(groups, cfg.train.steps_per_rollout, step - 1)
        least, oldest = run.estimator.min_samples, cfg.rollout.oldest_trained
        compared = compare(groups, least, step - 1, oldest, mask_truncated=cfg.algo.mask_truncated)
        samples = compared.sequences
        recorded = missing_shares(samples, [recording.name for recording in recordings_of(cfg)])
        samples, told = with_numbers(samples, [each.name for each in (*kept_tokens(cfg), *numbers_told())])
    if made_by(stage.objective):
        with watch("columns"):
            samples = run.asking(partial(with_columns, stage.objective, samples))
    with watch("pack"):
        batches = learner.pack(samples, cfg.train.steps_per_rollout)
        skipped = skipped_steps(len(batches), cfg.train.steps_per_rollout, step)
    run.events.phase("train")
    penalties, moved = dict[int, float](), dict[str, float]()
    if stage.penalises_attempts:
        penalties, moved = run.beside(partial(learner.penalties, batches, stage))
    batches = with_advantages(batches, compared.advantages(run.estimator, penalties))
    values = recorded | told | skipped | run.beside(partial(learner.train, batches, step, stage, meanwhile)) | moved
    watch.add_all(values)
    return values


def _last(run: Run, stage: Stage, step: int) -> int:
    """The step that the stage ends with: this one, if the run is asked to stop."""
    return step if run.events.problem else stage.num_steps


def _stop_if_asked(run: Run, stage: Stage, step: int) -> None:
    if run.events.problem and step < stage.num_steps:
        raise run.events.problem


def _due(step: int, last: int, interval: int | None) -> bool:
    """Whether `step` is the last one or the end of an interval (0: the last one alone; None: never)."""
    return interval is not None and (step == last or (interval > 0 and step % interval == 0))
